# Train the weights in the package on at a low rate that falls to nothing. Run in the root of a checkout, on any number of GPUs.
#   SECONDS_IN_ALL  time after which it has ended [570]; it pauses half a minute before
#   PACK            pictures and meshes, as for train.sh
#   OUT             folder for weights.safetensors and history.csv
#   STEPS           length of the whole training [5400]
# Called again on the same machine it continues.
START_S=$SECONDS
BASE=${TMPDIR:-/tmp}
RUN=$BASE/fullfield_finetune
export PYTHONPATH=$PWD/src PYTHONUNBUFFERED=1 TORCHINDUCTOR_CACHE_DIR=$BASE/inductor
GPUS=$(nvidia-smi -L | wc -l)
DATA=${DATA:-"synthetic-meshes=0.4 synthetic-bodies=0.2 synthetic-usual=0.14 synthetic-figures=0.08 synthetic-small=0.18"}
PAUSE=$(python3 -c "print(max(0.3, (${SECONDS_IN_ALL:-570} - 30 - ($SECONDS - $START_S)) / 60))")
python3 -m torch.distributed.run --standalone --nproc-per-node "$GPUS" -m fullfield train flow -o "$RUN" --network fullfield-m \
  --init fullfield-m --batch $((${PER_GPU:-32} * GPUS)) --size "${SIZE:-640x416}" --data $DATA --pictures "$PACK" \
  --steps "${STEPS:-5400}" --schedule stable --warmup 0.03 --decay 0.97 --visible 0 --learning-rate "${RATE:-2e-4}" \
  --updates 4-12 --precision bfloat16 --channels-last --compile default --graph --seed "${SEED:-3}" --every 200 --device cuda \
  --workers 2 --pause "$PAUSE" 2>&1 | tr '\r' '\n' | tee -a "$OUT/train.log"
cp "$RUN/weights.safetensors" "$RUN/history.csv" "$OUT"
tail -n 3 "$OUT/history.csv"
