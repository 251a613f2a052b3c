# What the five scripts share: corpus from the downloaded files, training, evaluation beside the paper's Table 4.
#
#     runs/eurlex-4k.sh FILES OUT [options of aplc train ...]
#
# FILES is the folder with the downloaded files; whose they are is seen by their names. OUT gets corpus/, model/ and
# evaluation.json. A run that was stopped goes on where it was when the same command is given again. More options go to
# aplc train: --set model.encoder=FOLDER for a machine without the hub. From the environment: PYTHON is a Python that has
# aplc, .venv's if not given (`make install` makes it); APLC is the command that trains and evaluates, e.g.
# APLC="torchrun --nproc-per-node 4 -m aplc" for four GPUs.
set -euo pipefail

if [ $# -lt 2 ]; then
    echo "usage: $0 FILES OUT [options of aplc train ...]; which files: see the first lines of $0" >&2
    exit 2
fi
files=$1 out=$2
shift 2
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
if [ -z "${PYTHON:-}" ] && [ -x "$here/../.venv/bin/aplc" ]; then
    PATH=$here/../.venv/bin:$PATH
fi
python=${PYTHON:-python3}
aplc=("$python" -m aplc)
if [ -n "${APLC:-}" ]; then
    read -r -a aplc <<< "$APLC"
fi

if [ ! -f "$out/corpus/train.jsonl" ] || [ ! -f "$out/corpus/test.jsonl" ]; then
    format=
    for known in train.csv=aplc-xlnet X.trn.txt=pecos train_labels.txt=attentionxml trn.json.gz=xml-repository \
        trn.json=xml-repository trn_X.txt=xml-repository raw/trn_X.txt=xml-repository; do
        if [ -z "$format" ] && [ -f "$files/${known%=*}" ]; then format=${known#*=}; fi
    done
    if [ -z "$format" ]; then
        echo "$files: no train.csv, X.trn.txt, train_labels.txt, trn.json.gz or trn_X.txt; see the first lines of $0" >&2
        exit 2
    fi
    "$python" -m aplc convert "$files" --from "$format" --out "$out/corpus"
    if [ ! -f "$out/corpus/test.jsonl" ]; then
        rm "$out/corpus/train.jsonl"
        echo "$files: no files of a test part; is the whole archive unpacked? See the first lines of $0" >&2
        exit 2
    fi
fi

# The paper trains on all training documents for a fixed number of epochs: nothing is held out.
"${aplc[@]}" train "$out/corpus" --preset "$PRESET" --out "$out/model" --resume --set data.validation=0 "$@"
"${aplc[@]}" evaluate "$out/model" "$out/corpus" --propensity "$PROPENSITY" --json "$out/evaluation.json"
echo
"$python" "$here/beside.py" "$PRESET" "$out/evaluation.json" "$out/model"
