"""Random networks of 16 dimensions that classify or encode texts."""

import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers, processors

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *"abcde", "good", "bad", ".", "!", "the", "film", "is"]
TEXTS = [
    "the film is good .",
    "bad",
    "",
    "a b c d e a b c",
    "good ! bad . the film\nis good",
    "unknown words",
    "the film is bad . the film is good !",
]


def word_tokenizer():
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]"
    )


def bert_config(max_length=32, labels=("negative", "positive")):
    return transformers.BertConfig(
        vocab_size=len(WORDS),
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=max_length,
        num_labels=len(labels),
        id2label=dict(enumerate(labels)),
        label2id={label: i for i, label in enumerate(labels)},
        initializer_range=1.0,
    )


def encoder_pipeline(seed=0):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = transformers.BertModel(bert_config()).eval()
    return transformers.pipeline("feature-extraction", model=model, tokenizer=word_tokenizer(), device="cpu")


def classifier_pipeline(seed=0, max_length=32, labels=("negative", "positive")):
    fast = word_tokenizer()
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = transformers.BertForSequenceClassification(bert_config(max_length, labels)).eval()
    with torch.no_grad():  # so that there are scores below and above 0.5
        logits = model(**fast(TEXTS, padding=True, return_tensors="pt")).logits
        model.classifier.bias -= logits.mean(0)
    return transformers.pipeline("text-classification", model=model, tokenizer=fast, device="cpu")
