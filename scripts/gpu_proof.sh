#!/usr/bin/env bash
# Proves engine=skyrl on this machine's GPUs, one proof a word: scripts/gpu_proof.sh a
#   a   one GPU: the tiny model learns mazes; killed after a checkpoint, resumed, and solved to >= 0.95 at the end
#   b   two GPUs: colocated and separate, each with a checkpoint and a resume; step times and GPU use side by side
#   c   one GPU, 8B shape with random weights: batch sizes and KL as in SkyRL's own VisGym recipe against ours
#   d   one GPU, 8B shape: a checkpoint written, and resumed
# Results go to $OUT (outputs/gpu_proof); PYTHON (python3) must have the [skyrl] extra. STEPS shortens a, and WORDS are
# further overrides for it.
set -uo pipefail
cd "$(dirname "$0")/.."
PYTHON=${PYTHON:-python3}
OUT=${OUT:-outputs/gpu_proof}
RUNS=${RUNS:-$OUT/runs}
mkdir -p "$OUT" "$RUNS"
export HF_HUB_OFFLINE=1 PYTHONUNBUFFERED=1
START=$(date +%s)
say() { echo "[$(($(date +%s) - START)) s] $*"; }

# Ray's daemons outlive a killed driver; on a machine of one's own that is all of them.
# So do vLLM's engines, with their share of the GPU.
end_ray() {
  "$PYTHON" -m ray.scripts.scripts stop --force >/dev/null 2>&1
  nvidia-smi --query-compute-apps=pid --format=csv,noheader | xargs -r kill -9 2>/dev/null
}

# train NAME SECONDS words...: a run in $RUNS/NAME; its output in $OUT/NAME.log
train() {
  local name=$1 limit=$2
  shift 2
  timeout --signal=KILL "$limit" "$PYTHON" train.py "$@" >>"$OUT/$name.log" 2>&1
  local code=$?
  end_ray
  say "$name ended with $code"
  grep -E "^step|ALARM|error|solved \(95" "$OUT/$name.log" | tail -5 | cut -c1-240
  [ $code = 0 ] || tail -n 30 "$OUT/$name.log" | cut -c1-300
  for file in metrics.jsonl summary.json train.log config.yaml; do
    mkdir -p "$OUT/$name" && cp "$RUNS/$name/$file" "$OUT/$name/" 2>/dev/null
  done
  cp "$RUNS/$name"/skyrl/infra-*.log "$OUT/$name/" 2>/dev/null
  return $code
}

# killed_after STEP NAME SECONDS words...: the same, killed hard once the checkpoint of STEP is whole
killed_after() {
  local step=$1 name=$2 limit=$3
  shift 3
  "$PYTHON" train.py "$@" >>"$OUT/$name.log" 2>&1 &
  local pid=$! until=$(($(date +%s) + limit))
  until [ -e "$RUNS/$name/checkpoints/$(printf step_%06d "$step")/DONE" ]; do
    if ! kill -0 $pid 2>/dev/null || [ "$(date +%s)" -gt "$until" ]; then
      say "$name: no checkpoint of step $step"
      tail -n 40 "$OUT/$name.log" | cut -c1-300
      kill -9 $pid 2>/dev/null
      end_ray
      return 1
    fi
    sleep 1
  done
  kill -9 $pid
  end_ray
  say "$name killed after step $step: $(tail -n 1 "$RUNS/$name/metrics.jsonl" | cut -c1-60)"
}

TINY="engine=skyrl tracker=none engine.cuda_graphs=false engine.gpu_memory_utilization=0.3"

proof_a() {
  local steps=${STEPS:-60}
  local words="$TINY runtime.steps=$steps hydra.run.dir=$RUNS/a ${WORDS:-}"
  killed_after $((steps / 3)) a 500 $words runtime.checkpoint_interval=$((steps / 3)) &&
    train a 900 resume="$RUNS/a"
  "$PYTHON" scripts/gpu_proof/show.py "$RUNS/a"
}

proof_b() {
  local few="runtime.steps=6 runtime.checkpoint_interval=3 runtime.eval_episodes=16 runtime.test_episodes=32"
  local words="$TINY cluster.gpus_per_node=2 $few ${WORDS:-}"
  killed_after 3 b_colocated 400 $words hydra.run.dir="$RUNS/b_colocated" &&
    train b_colocated 500 resume="$RUNS/b_colocated"
  killed_after 3 b_separate 400 $words hydra.run.dir="$RUNS/b_separate" engine.placement=separate engine.num_engines=1 &&
    train b_separate 500 resume="$RUNS/b_separate"
  "$PYTHON" scripts/gpu_proof/show.py "$RUNS/b_colocated" "$RUNS/b_separate"
}

# The 8B shape's words, in the array `shape`: the cluster preset on one GPU, with little work a step.
make_shape() {
  local model=$RUNS/random_8b ids
  [ -e "$model/ids.json" ] || "$PYTHON" scripts/gpu_proof/random_model.py "$model" | tail -n 1 >"$model.ids" &&
    mv "$model.ids" "$model/ids.json" 2>/dev/null
  ids=$(cat "$model/ids.json") || return 1
  shape=(experiment=maze_hyperpod cluster=local tracker=none runtime.output_dir="$RUNS" model.name_or_path="$model"
    adapter.rank=32 algorithm.prompts_per_step=4 algorithm.max_completion_tokens=192 env.max_turns=18
    engine.num_engines=null runtime.eval_interval=1000 runtime.eval_episodes=4 runtime.test_episodes=4
    "+engine.overrides.generator.sampling_params.additional_kwargs.allowed_token_ids=$ids")
}

proof_c() {
  make_shape || return 1
  train c_recipe 900 "${shape[@]}" runtime.steps=4 runtime.checkpoint_interval=1000 hydra.run.dir="$RUNS/c_recipe" \
    runtime.per_device_batch_size=4 engine.forward_batch_size=4 algorithm.kl_coefficient=0.005 algorithm.updates_per_step=2
  train c_ours 900 "${shape[@]}" runtime.steps=4 runtime.checkpoint_interval=1000 hydra.run.dir="$RUNS/c_ours" \
    runtime.per_device_batch_size=4 engine.forward_batch_size=8 algorithm.kl_coefficient=0
  "$PYTHON" scripts/gpu_proof/show.py "$RUNS/c_recipe" "$RUNS/c_ours"
}

proof_d() {
  make_shape || return 1
  killed_after 1 d 900 "${shape[@]}" runtime.steps=2 runtime.checkpoint_interval=1 runtime.keep_checkpoints=1 \
    hydra.run.dir="$RUNS/d" && train d 900 resume="$RUNS/d"
  du -sh "$RUNS"/d/checkpoints/*
  "$PYTHON" scripts/gpu_proof/show.py "$RUNS/d"
}

for proof in "$@"; do "proof_$proof"; done
