#!/usr/bin/env bash
# Amazon-670k as in the paper: preset amazon-670k, evaluated beside Table 4. Needs a GPU and the pretrained xlnet-base-cased;
# `aplc plan OUT/corpus --preset amazon-670k` says how much memory.
#
# Download one of these and unpack it; FILES is the folder that then holds the files:
#   - the authors' own: folder Amazon670k of "Prepare Data" in github.com/huiyegit/APLC_XLNet
#     (train.csv, dev.csv, labels.txt); the paper's figures are about these
#   - AttentionXML's: Amazon-670K of "Datasets" in github.com/yourh/AttentionXML
#     (train_raw_texts.txt, train_labels.txt, test_*)
#   - PECOS': archive.org/download/pecos-dataset/xmc-base/amazon-670k.tar.gz
#     (X.trn.txt, X.tst.txt, Y.trn.npz, Y.tst.npz, output-items.txt)
#   - the XML repository's: raw text of Amazon-670K, manikvarma.org/downloads/XC/XMLRepository.html
#     (trn.json.gz, tst.json.gz, Yf.txt)
#
#     runs/amazon-670k.sh FILES OUT [options of aplc train ...]
PRESET=amazon-670k
PROPENSITY=amazon
source "$(dirname "$0")/run.sh"
