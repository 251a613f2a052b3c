#!/usr/bin/env bash
# AmazonCat-13k as in the paper: preset amazoncat-13k, evaluated beside Table 4. Needs a GPU and the pretrained xlnet-base-cased;
# `aplc plan OUT/corpus --preset amazoncat-13k` says how much memory.
#
# Download one of these and unpack it; FILES is the folder that then holds the files:
#   - the authors' own: folder AmazonCat of "Prepare Data" in github.com/huiyegit/APLC_XLNet
#     (train.csv, dev.csv, labels.txt); the paper's figures are about these
#   - AttentionXML's: AmazonCat-13K of "Datasets" in github.com/yourh/AttentionXML
#     (train_raw_texts.txt, train_labels.txt, test_*)
#   - PECOS': archive.org/download/pecos-dataset/xmc-base/amazoncat-13k.tar.gz
#     (X.trn.txt, X.tst.txt, Y.trn.npz, Y.tst.npz, output-items.txt)
#   - the XML repository's: raw text of AmazonCat-13K, manikvarma.org/downloads/XC/XMLRepository.html
#     (trn.json.gz, tst.json.gz, Yf.txt)
#
#     runs/amazoncat-13k.sh FILES OUT [options of aplc train ...]
PRESET=amazoncat-13k
PROPENSITY=default
source "$(dirname "$0")/run.sh"
