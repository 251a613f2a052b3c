# What the five scripts share: corpus from the downloaded files, training, evaluation beside the paper's Table 4.
#
#     runs/eurlex-4k.sh FILES OUT [options of aplc train ...]
#
# FILES is the folder with the downloaded files; whose they are is seen by their names. OUT gets corpus/, model/ and
# evaluation.json. A run that was stopped goes on where it was when the same command is given again. More options go to
# aplc train: --set model.encoder=FOLDER for a machine without the hub. From the environment: APLC is the command to
# call, e.g. APLC="torchrun --nproc-per-node 4 -m aplc" for four GPUs; PYTHON is a Python from 3.11 on.
set -euo pipefail

if [ $# -lt 2 ]; then
    echo "usage: $0 FILES OUT [options of aplc train ...]; which files: see the first lines of $0" >&2
    exit 2
fi
files=$1 out=$2
shift 2
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
venv=$here/../.venv/bin
[ -x "$venv/aplc" ] || venv=
read -r -a aplc <<< "${APLC:-${venv:+$venv/}aplc}"
python=${PYTHON:-${venv:+$venv/}python3}

if [ ! -f "$out/corpus/train.jsonl" ]; then
    if [ -f "$files/train.csv" ]; then
        format=aplc-xlnet
    elif [ -f "$files/X.trn.txt" ]; then
        format=pecos
    elif [ -f "$files/train_labels.txt" ]; then
        format=attentionxml
    else
        format=xml-repository
    fi
    "${aplc[@]}" convert "$files" --from "$format" --out "$out/corpus"
fi

# The paper trains on all training documents for a fixed number of epochs: nothing is held out.
"${aplc[@]}" train "$out/corpus" --preset "$PRESET" --out "$out/model" --resume --set data.validation=0 "$@"
"${aplc[@]}" evaluate "$out/model" "$out/corpus" --propensity "$PROPENSITY" --json "$out/evaluation.json"
echo
"$python" "$here/beside.py" "$PRESET" "$out/evaluation.json" "$out/model"
