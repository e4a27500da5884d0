# Branch a short decay off the stable training and store the averaged weights. Run after train.sh on the same machine.
#   STEPS  length of the decay [1200]
BASE=${TMPDIR:-/tmp}
STEPS=${STEPS:-1200}
export PYTHONPATH=$PWD/src PYTHONUNBUFFERED=1 TORCHINDUCTOR_CACHE_DIR=$BASE/inductor
GPUS=$(nvidia-smi -L | wc -l)
DATA=${DATA:-"synthetic-meshes=0.4 synthetic-bodies=0.2 synthetic-usual=0.14 synthetic-figures=0.08 synthetic-small=0.18"}
python3 -m torch.distributed.run --standalone --nproc-per-node "$GPUS" -m fullfield train flow -o "$BASE/fullfield_decay" \
  --network fullfield-m --after "$BASE/fullfield_run" --batch $((${PER_GPU:-32} * GPUS)) --size "${SIZE:-496x368}" --data $DATA \
  --pictures "$PACK" --steps "$STEPS" --schedule stable --warmup 0 --decay 1 --visible 0 --learning-rate "${RATE:-5e-4}" \
  --updates 4-12 --precision bfloat16 --channels-last --compile default --graph --seed "${SEED:-3}" --every 200 --device cuda --workers 2
cp "$BASE/fullfield_decay/weights.safetensors" "$OUT/decayed.safetensors"
