#!/usr/bin/env bash
# Wiki10-31k as in the paper: preset wiki10-31k, evaluated beside Table 4. Needs a GPU and the pretrained xlnet-base-cased;
# `aplc plan OUT/corpus --preset wiki10-31k` says how much memory.
#
# Download one of these and unpack it; FILES is the folder that then holds the files:
#   - the authors' own: folder Wiki10 of "Prepare Data" in github.com/huiyegit/APLC_XLNet
#     (train.csv, dev.csv, labels.txt); the paper's figures are about these
#   - AttentionXML's: Wiki10-31K of "Datasets" in github.com/yourh/AttentionXML
#     (train_raw_texts.txt, train_labels.txt, test_*)
#   - PECOS': archive.org/download/pecos-dataset/xmc-base/wiki10-31k.tar.gz
#     (X.trn.txt, X.tst.txt, Y.trn.npz, Y.tst.npz, output-items.txt)
#
#     runs/wiki10-31k.sh FILES OUT [options of aplc train ...]
PRESET=wiki10-31k
PROPENSITY=default
source "$(dirname "$0")/run.sh"
