# Continue the stable training of fullfield-m. Run in the root of a checkout, on any number of GPUs.
#   SECONDS_IN_ALL  time after which it has ended [570]; it pauses a minute before
#   PACK            pictures and meshes (python -m tools textures, then tools meshes)
#   OUT             folder for packed/, history.csv and train.log
# Called again on the same machine it continues its run; on another one it unpacks the files beside this script.
START_S=$SECONDS
LIMIT=${SECONDS_IN_ALL:-570}
HERE=$(dirname "$0")
BASE=${TMPDIR:-/tmp}
RUN=$BASE/fullfield_run
PREVIOUS=$BASE/fullfield_previous
export PYTHONPATH=$PWD/src PYTHONUNBUFFERED=1 TORCHINDUCTOR_CACHE_DIR=$BASE/inductor
GPUS=$(nvidia-smi -L | wc -l)
DATA=${DATA:-"synthetic-meshes=0.4 synthetic-bodies=0.2 synthetic-usual=0.14 synthetic-figures=0.08 synthetic-small=0.18"}
if [ ! -d "$RUN" ] && [ ! -d "$PREVIOUS" ]; then
  python3 -m tools training unpack "$HERE" "$PREVIOUS" || exit 1
fi

pack() {
  rm -rf "$BASE/packing" && python3 -m tools training pack "$RUN" "$BASE/packing" && rm -rf "$OUT/packed" \
    && mv "$BASE/packing" "$OUT/packed" && cp "$RUN/history.csv" "$OUT/history.csv"
}

PAUSE=$(python3 -c "print(max(0.3, ($LIMIT - 60 - ($SECONDS - $START_S)) / 60))")
python3 -m torch.distributed.run --standalone --nproc-per-node "$GPUS" -m fullfield train flow -o "$RUN" --network fullfield-m \
  --after "$PREVIOUS" --batch $((${PER_GPU:-32} * GPUS)) --size "${SIZE:-496x368}" --data $DATA --pictures "$PACK" \
  --steps 30000 --schedule stable --decay 0 --warmup 0 --visible 0 --learning-rate "${RATE:-5e-4}" --updates 4-8 \
  --precision bfloat16 --channels-last --compile default --graph --seed "${SEED:-2}" --every 500 \
  --validate synthetic-usual synthetic-meshes --validation-pairs 16 --validate-every 2 --device cuda --workers 2 \
  --pause "$PAUSE" 2>&1 | tr '\r' '\n' | tee -a "$OUT/train.log"
pack
tail -n 3 "$OUT/history.csv"
