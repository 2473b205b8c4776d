#!/usr/bin/env bash
# Build the image: launchers/image/build.sh --base ADDRESS@sha256:DIGEST --tag NAME:TAG
# The base is one of Ray's CUDA images of the Ray version in pyproject.toml, such as rayproject/ray:2.56.0-py312-cu128.
# `docker buildx imagetools inspect rayproject/ray:2.56.0-py312-cu128` prints its digest. DOCKER=echo shows the command.
set -euo pipefail
cd "$(dirname "$0")/../.."

base='' tag=''
while [ $# -gt 0 ]; do
  case "$1" in
    --base) base="${2-}"; shift 2 ;;
    --tag) tag="${2-}"; shift 2 ;;
    *) echo "error: unknown word $1; see the first lines of $0" >&2; exit 2 ;;
  esac
done
[[ "$base" =~ @sha256:[0-9a-f]{64}$ ]] || { echo "error: --base wants an image by digest (…@sha256:64 hex digits), got '$base'" >&2; exit 2; }
[[ "$tag" =~ :[A-Za-z0-9._-]+$ ]] || { echo "error: --tag wants NAME:TAG, got '$tag'" >&2; exit 2; }
[[ "$tag" != *:latest ]] || { echo "error: the tag latest can mean another image tomorrow; use a date or a commit" >&2; exit 2; }
git diff --quiet HEAD -- || { echo "error: uncommitted changes; the image would not say what it was made from" >&2; exit 2; }

"${DOCKER:-docker}" build --platform linux/amd64 --file launchers/image/Dockerfile \
  --build-arg "BASE_IMAGE=$base" --build-arg "COMMIT=$(git rev-parse HEAD)" --tag "$tag" .
