"""What `envs.manifest` reads: rows, the index over them, their images, and copies of what lies in S3."""
