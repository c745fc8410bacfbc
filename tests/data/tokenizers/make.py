#!/usr/bin/env python3
"""Make the tokenizer fixtures of this folder with the `tokenizers` package from PyPI (version 0.23.3 was used).

    python3 make.py        writes <layout>.json (a tokenizer.json) and <layout>.expected.json

The expected files list texts with the ids and the decoded text that the package gives for them; demo.expected.json
does so for the tokenizer of models/demo. Added tokens are left out of the tokenizers that encode the texts, because
the package would otherwise find them there, where kvq reads plain text.
"""
import json
import pathlib

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

HERE = pathlib.Path(__file__).resolve().parent
DEMO = HERE.parents[2] / "models" / "demo"
ENGLISH = (DEMO / "sample.txt").read_text(encoding="utf-8")[:60000]

LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")

OTHER_SCRIPTS = [
    "नमस्ते दुनिया, यह हिन्दी है।", "你好，世界。今天天气很好。", "こんにちは世界", "안녕하세요 세계", "Привет, мир! Ещё раз.",
    "مرحبا بالعالم ١٢٣", "Café déjà vu, naïve, Ångström, Việt Nam", "e\u0301 a\u030a n\u0303 o\u0302\u0301",
    "👩‍👩‍👧‍👦 👍🏽 🇫🇷 😀😀", "x = 12345 * (y + 0.5);\n\treturn x;\n\n", "I'm, you're, he'll, WE'VE, don'T",
]

TEXTS = OTHER_SCRIPTS + [
    "", " ", "  ", "a", " a", "a ", "  a", "a  b   c    d", "\n", "\n\n\n", " \n \n ", "\r\n\r\n", "a\n  b\n\n\n   c",
    "\t\tx\t y", "Hello, World!", "hello world " * 8, "1", "12", "123", "1234", "1234567890", "3.14159", "x1y22z333",
    "½ ⅔ Ⅷ ² ٣ १२३ ①", "it's IT'S It\u2019s 'tis 's's'S 'll'LL", "'\u017fa K\u212aelvin \u0131\u0130", "<s>", "</s><unk>",
    "<|eot|>", "<0x41>", "Ġ ▁ ▁▁a", "a\u00a0b\u2003c\u3000d\u200be\u180ef\u0085g\u2028h",
    "\ufeffbom", "\u0000\u0001\u007f", "क्षि त्र ज्ञ", "\u1100\u1161\u11a8 \uac01", "\u0344 \u2126 \ufb01 \u0958",
    "a\u0315\u0300\u05ae\u0062", "\U0001f468\u200d\U0001f4bb!!", "...!?--__##@@", "    if (a) {\n        b();\n    }\n",
    "ſ's ſ'S", "漢字かな交じり文 ＡＢＣ １２３", "word\u0301s with\u0308 marks", " \u0301", "\U00010400\U0001d54f\U000e0001",
    "the the the of of and and", "\u2581", "\u2581 x", "x\u2581", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "\u00b5m \u03bcm",
]


def byte_level(pattern, unicode_form, ignore_merges):
    tokenizer = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    if unicode_form:
        tokenizer.normalizer = unicode_form
    if pattern:
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
            pre_tokenizers.Split(Regex(pattern), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ])
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer, trainers.BpeTrainer(
        vocab_size=480, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet())


def metaspace():
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    tokenizer.decoder = decoders.Sequence([
        decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    return tokenizer, trainers.BpeTrainer(
        vocab_size=480, show_progress=False, special_tokens=["<unk>", "<s>", "</s>"] + bytes_)


def write_expected(name, document):
    plain = Tokenizer.from_str(json.dumps({**document, "added_tokens": []}))
    expected = []
    for text in TEXTS:
        ids = plain.encode(text, add_special_tokens=False).ids
        expected.append({"text": text, "ids": ids, "decoded": plain.decode(ids)})
    (HERE / f"{name}.expected.json").write_text(json.dumps(expected, separators=(",", ":")) + "\n")


def write(name, tokenizer, trainer, added):
    encode_with = tokenizer.pre_tokenizer
    texts = [ENGLISH] + OTHER_SCRIPTS * 20
    if name == "metaspace":
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=True)  # otherwise the text is one word
        texts = [ENGLISH]  # so that other scripts fall back to bytes
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.pre_tokenizer = encode_with
    # What the trainer itself added is part of the model already; only the markers stay special.
    document = json.loads(tokenizer.to_str())
    document["added_tokens"] = []
    write_expected(name, document)
    complete = Tokenizer.from_str(json.dumps(document))
    complete.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in added])
    complete.add_tokens(["<call>"])
    document = json.loads(complete.to_str())
    (HERE / f"{name}.json").write_text(json.dumps(document, separators=(",", ":")) + "\n")


write("llama3", *byte_level(LLAMA3, None, True), ["<|begin|>", "<|eot|>"])
write("qwen2", *byte_level(QWEN2, normalizers.NFC(), False), ["<|begin|>", "<|eot|>"])
write("gpt2", *byte_level(None, None, False), ["<|begin|>", "<|eot|>"])
write("metaspace", *metaspace(), ["<unk>", "<s>", "</s>"])
write_expected("demo", json.loads((DEMO / "tokenizer.json").read_text(encoding="utf-8")))
