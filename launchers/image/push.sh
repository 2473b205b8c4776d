#!/usr/bin/env bash
# Push a built image to ECR and record its digest: launchers/image/push.sh --tag NAME:TAG --repository NAME [--region REGION]
# The last line is what cluster.image wants; it is also appended to launchers/image/pushed.txt. DOCKER and AWS may name
# other programs.
set -euo pipefail
cd "$(dirname "$0")/../.."

tag='' repository='' region="${AWS_REGION-}"
while [ $# -gt 0 ]; do
  case "$1" in
    --tag) tag="${2-}"; shift 2 ;;
    --repository) repository="${2-}"; shift 2 ;;
    --region) region="${2-}"; shift 2 ;;
    *) echo "error: unknown word $1; see the first lines of $0" >&2; exit 2 ;;
  esac
done
[[ "$tag" =~ :[A-Za-z0-9._-]+$ && "$tag" != *:latest ]] || { echo "error: --tag wants NAME:TAG, and not latest, got '$tag'" >&2; exit 2; }
[[ -n "$repository" && -n "$region" ]] || { echo "error: --repository and --region (or AWS_REGION) must be given" >&2; exit 2; }
docker="${DOCKER:-docker}" aws="${AWS:-aws}"

account="$("$aws" sts get-caller-identity --query Account --output text)"
registry="$account.dkr.ecr.$region.amazonaws.com"
"$aws" ecr describe-repositories --region "$region" --repository-names "$repository" >/dev/null 2>&1 ||
  "$aws" ecr create-repository --region "$region" --repository-name "$repository" \
    --image-tag-mutability IMMUTABLE --image-scanning-configuration scanOnPush=true >/dev/null
"$aws" ecr get-login-password --region "$region" | "$docker" login --username AWS --password-stdin "$registry"
"$docker" tag "$tag" "$registry/$repository:${tag##*:}"
"$docker" push "$registry/$repository:${tag##*:}"
digest="$("$aws" ecr describe-images --region "$region" --repository-name "$repository" \
  --image-ids "imageTag=${tag##*:}" --query 'imageDetails[0].imageDigest' --output text)"
[[ "$digest" =~ ^sha256:[0-9a-f]{64}$ ]] || { echo "error: ECR gave no digest for ${tag##*:}, but '$digest'" >&2; exit 1; }
echo "$registry/$repository@$digest" | tee -a launchers/image/pushed.txt
