#!/usr/bin/env bash
# Proves engine=skyrl on this machine's GPUs, one proof a word: scripts/gpu_proof.sh a
#   a          one GPU: the tiny model learns mazes; killed -9 after step 3, resumed, solved on the test split
#   b          two GPUs: colocated with a checkpoint, then separate; step times and GPU use side by side
#   b_resume   after b: its colocated run goes on from its checkpoint
#   c          one GPU, 8B shape with random weights: SkyRL's VisGym recipe and ours step by step in turns
#   d          one GPU, 8B shape: a checkpoint written, the run killed -9
#   d_resume   after d: that run resumed
# Each fits 600 s; figures are printed as they come, and the exit code is 1 if a claim does not hold. Logs go to $OUT
# (outputs/gpu_proof), runs and the random model to $RUNS ($OUT/runs); PYTHON (python3) must have the [skyrl] extra.
# STEPS is the number of steps of a, LIMIT the seconds of one proof, WORDS are further overrides.
set -uo pipefail
cd "$(dirname "$0")/.."
PYTHON=${PYTHON:-python3}
OUT=${OUT:-outputs/gpu_proof}
RUNS=${RUNS:-$OUT/runs}
LIMIT=${LIMIT:-580}
mkdir -p "$OUT" "$RUNS"
export HF_HUB_OFFLINE=1 PYTHONUNBUFFERED=1
START=$(date +%s)
say() { echo "[$(($(date +%s) - START)) s] $*"; }
left() { echo $((LIMIT - $(date +%s) + START)); }
show() { "$PYTHON" -m scripts.gpu_proof.show "$@"; }

# What a run says of its progress, line by line, from its whole output, which goes to the log of its name.
told() {
  tee -a "$OUT/$1.log" |
    grep --line-buffered -E "^ *step|^(ours|recipe|mean of|the recipe|start|trained)|ALARM|[Ee]rror|resuming" |
    sed -u 's/^\(.\{220\}\).*/\1/'
}

# keep NAME: the small files of a run into $OUT
keep() {
  mkdir -p "$OUT/$1"
  cp "$RUNS/$1"/{metrics.jsonl,summary.json,train.log,config.yaml,compare.jsonl,skyrl/infra-*.log} "$OUT/$1/" 2>/dev/null
}

# python_run NAME words...: runs it in the seconds that are left
python_run() {
  local name=$1 seconds
  shift
  seconds=$(left)
  [ "$seconds" -gt 0 ] || { say "$name: no time left"; return 1; }
  timeout --signal=INT --kill-after=20 "$seconds" "$PYTHON" "$@" > >(told "$name") 2>&1
  local code=$?
  sleep 1 # for what is still in the pipe
  say "$name ended with $code"
  [ $code = 0 ] || tail -n 30 "$OUT/$name.log" | cut -c1-300
  keep "$name"
  return $code
}

# killed_after STEP NAME words...: the run, killed hard once the checkpoint of STEP is whole
killed_after() {
  local step=$1 name=$2
  shift 2
  "$PYTHON" train.py "$@" > >(told "$name") 2>&1 &
  local pid=$!
  until [ -e "$RUNS/$name/checkpoints/$(printf step_%06d "$step")/DONE" ]; do
    if ! kill -0 $pid 2>/dev/null || [ "$(left)" -le 0 ]; then
      say "$name: no checkpoint of step $step"
      tail -n 40 "$OUT/$name.log" | cut -c1-300
      kill -9 $pid 2>/dev/null
      keep "$name"
      return 1
    fi
    sleep 1
  done
  kill -9 $pid
  say "$name killed after step $step"
  keep "$name"
  gpus_are_free
}

# A killed run's engines end by themselves, with their share of the GPU's memory.
gpus_are_free() {
  local since used
  since=$(date +%s)
  while true; do
    used=$(nvidia-smi --query-gpu=memory.used --format=csv,noheader,nounits | sort -n | tail -n 1)
    [ "$used" -lt 2000 ] && break
    [ $(($(date +%s) - since)) -lt 60 ] || { say "the GPU still holds $used MiB"; return 1; }
    sleep 0.5
  done
  say "the GPUs are free $(($(date +%s) - since)) s after the kill"
}

TINY=(engine=skyrl tracker=none engine.cuda_graphs=false engine.gpu_memory_utilization=0.3)

proof_a() {
  local steps=${STEPS:-6}
  killed_after $((steps / 2)) a "${TINY[@]}" runtime.steps="$steps" runtime.checkpoint_interval=$((steps / 2)) \
    runtime.eval_episodes=32 runtime.test_episodes=64 hydra.run.dir="$RUNS/a" ${WORDS:-} || return 1
  python_run a train.py resume="$RUNS/a"
  show --steps "$steps" --solved 0.95 "$RUNS/a"
}

two_gpus() {
  python_run "$1" train.py "${TINY[@]}" cluster.gpus_per_node=2 algorithm.prompts_per_step=8 runtime.steps=5 \
    runtime.checkpoint_interval=5 runtime.eval_interval=5 runtime.eval_episodes=4 runtime.test_episodes=4 \
    hydra.run.dir="$RUNS/$1" "${@:2}" ${WORDS:-}
}

proof_b() {
  local code=0
  two_gpus b_colocated || code=1
  show --steps 5 "$RUNS/b_colocated" || code=1
  two_gpus b_separate engine.placement=separate engine.num_engines=1 || code=1
  show --steps 5 "$RUNS/b_colocated" "$RUNS/b_separate" || code=1
  return $code
}

proof_b_resume() {
  [ -d "$RUNS/b_colocated" ] || { say "b comes first"; return 1; }
  python_run b_colocated train.py resume="$RUNS/b_colocated" runtime.steps=8 resume_accepts_changes=true
  show --steps 8 "$RUNS/b_colocated"
}

# The 8B shape's words, in the array `shape`: the cluster preset on one GPU, with little work a step.
make_shape() {
  local model=$RUNS/random_8b ids
  [ -e "$model/ids.json" ] || "$PYTHON" -m scripts.gpu_proof.random_model "$model" >>"$OUT/model.log" 2>&1
  ids=$(cat "$model/ids.json") || { tail "$OUT/model.log"; return 1; }
  say "the model is there"
  shape=(experiment=maze_hyperpod cluster=local tracker=none runtime.output_dir="$RUNS" model.name_or_path="$model"
    engine.num_engines=null engine.max_num_seqs=32 algorithm.prompts_per_step=4
    runtime.eval_interval=1000 runtime.eval_episodes=1 runtime.test_episodes=1
    "+engine.overrides.generator.sampling_params.additional_kwargs.allowed_token_ids=$ids" ${WORDS:-})
}

proof_c() {
  make_shape || return 1
  python_run c -m scripts.gpu_proof.compare "$(left)" "${shape[@]}" algorithm.max_completion_tokens=64 env.max_turns=15 \
    reward.workers=0 runtime.steps=100 runtime.checkpoint_interval=1000 hydra.run.dir="$RUNS/c"
}

proof_d() {
  make_shape || return 1
  killed_after 1 d "${shape[@]}" algorithm.max_completion_tokens=16 env.max_turns=13 engine.cuda_graphs=false \
    runtime.steps=2 runtime.checkpoint_interval=1 runtime.keep_checkpoints=1 hydra.run.dir="$RUNS/d" || return 1
  du -sh "$RUNS"/d/checkpoints/*
}

proof_d_resume() {
  python_run d train.py resume="$RUNS/d"
  show --steps 2 "$RUNS/d"
}

failed=0
for proof in "$@"; do
  START=$(date +%s)
  "proof_$proof" && say "$proof: holds" || { say "$proof: does not hold"; failed=1; }
done
exit $failed
