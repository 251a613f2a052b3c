#!/usr/bin/env bash
# EURLex-4k as in the paper: preset eurlex-4k, evaluated beside Table 4. Needs a GPU and the pretrained xlnet-base-cased;
# `aplc plan OUT/corpus --preset eurlex-4k` says how much memory.
#
# Download one of these and unpack it; FILES is the folder that then holds the files:
#   - the authors' own: folder EURLex of "Prepare Data" in github.com/huiyegit/APLC_XLNet
#     (train.csv, dev.csv, labels.txt); the paper's figures are about these
#   - AttentionXML's: EUR-Lex of "Datasets" in github.com/yourh/AttentionXML
#     (train_texts.txt, train_labels.txt, test_*: stemmed, 15,449 and 3,865 documents)
#   - PECOS': archive.org/download/pecos-dataset/xmc-base/eurlex-4k.tar.gz
#     (X.trn.txt, X.tst.txt, Y.trn.npz, Y.tst.npz, output-items.txt)
#
#     runs/eurlex-4k.sh FILES OUT [options of aplc train ...]
PRESET=eurlex-4k
PROPENSITY=default
source "$(dirname "$0")/run.sh"
