"""Stock llama.cpp, of the wheel xllamacpp, on a file; tiny models with tokenizers that were trained for them."""

from __future__ import annotations

import json
import random
import urllib.request
from functools import cache

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaTokenizer, PreTrainedTokenizerFast

import headroles as hr

SENTENCES = [
    "The quick brown fox, who'd slept, jumps over 13 lazy dogs; it's 3:07pm and they'LL bark!",
    "She opened the door  and saw   that the room was completely empty.",
    "Die Straßenbahn fährt für 2,50 € über die größte Brücke Österreichs.",
    "Zwölf Boxkämpfer jagen Viktor quer über den Sylter Deich.",
    "L'élève naïf a déjà mangé son gâteau à Noël, n'est-ce pas ?",
    "Où sont passés les œufs de 1984 ?",
    "Съешь же ещё этих мягких французских булок, да выпей чаю.",
    "В 1961 году человек впервые полетел в космос.",
    "你好，世界！今天是2024年5月1日。",
    "我能吞下玻璃而不伤身体。",
    "مرحبا بالعالم، هذا نص عربي قصير.",
    "اللغة العربية جميلة جدا ١٢٣",
    "def f(x_1, *args):\n    return {'a': x_1 ** 2, \"b\": [i for i in range(10)]}  # ok",
    "for (int i = 0; i < n; ++i) { sum += a[i] << 2; }\t// 0x1F",
    "<html lang=\"en\"><body class='x'>&nbsp;</body></html>",
    "👩‍👩‍👧 and 🇩🇪🎉 — “quoted” … ½ ≠ ② ﬁne",
    "XMLHttpRequest camelCase snake_case UPPER lowerUPPER'S I'M",
    "\n\n  two blank lines\n\n\n\tand a tab \n",
]  # fmt: skip
ENDINGS = ("<|endoftext|>", "<|im_end|>", "</s>")  # tokens after which llama.cpp would end a text
_drawn = random.Random(0)
LINES = [*SENTENCES, *(" ".join(_drawn.sample(SENTENCES, 2))[_drawn.randrange(9) :] for _ in range(200))][:200]
TEMPLATE = "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
ENDS = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}


def byte_level(way=None, size=600, **options):
    """A tokenizer of byte-level merges that splits texts into words in this way, by default as GPT-2."""
    backend = Tokenizer(models.BPE(**options))
    backend.pre_tokenizer = way or pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    special = ["<|endoftext|>", *ENDS.values()]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    backend.train_from_iterator(LINES, trainer)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, **ENDS)
    tokenizer.add_tokens(["<tool>"])
    tokenizer.chat_template = TEMPLATE
    return tokenizer


@cache
def sentence_piece(folder, size=600):
    """A tokenizer of SentencePiece with bytes for unknown letters, as of Llama 2 and Mistral."""
    import sentencepiece

    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(LINES), model_prefix=str(folder / "sp"), vocab_size=size, model_type="bpe",
        byte_fallback=True, character_coverage=0.98, normalization_rule_name="identity", minloglevel=2,
        remove_extra_whitespaces=False, split_digits=True, allow_whitespace_only_pieces=True,
    )  # fmt: skip
    return LlamaTokenizer.from_pretrained(folder, vocab_file=str(folder / "sp.model"), add_bos_token=True)


def tiny(tokenizer, name="llama", seed=0, **options):
    """A random model whose logits differ enough to tell its tokens apart."""
    sizes = {"num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 3, "hidden_size": 64}
    sizes |= {"head_dim": 16, "intermediate_size": 96, "max_position_embeddings": 256, "initializer_range": 0.15}
    sizes |= {"vocab_size": len(tokenizer) + 3, "sliding_window": None}
    sizes |= {"layer_types": ["full_attention"] * 3} if name.startswith("qwen") else {}
    model = hr.tiny_model(name, seed=seed, **sizes | options)
    for path, weight in model.named_parameters():
        if path.endswith("bias"):
            torch.nn.init.normal_(weight.data, std=0.5, generator=torch.Generator().manual_seed(seed))
    return model


class Running:
    """A model that llama.cpp has loaded, with keys and values in float32 like transformers'."""

    def __init__(self, path, *, context=256):
        import xllamacpp

        given = xllamacpp.CommonParams()
        given.model.path, given.n_ctx, given.n_parallel, given.verbosity = str(path), context, 1, 0
        given.cpuparams.n_threads = given.cpuparams_batch.n_threads = 1
        given.warmup = given.ui = False
        given.cache_type_k = given.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
        given.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
        self.server = xllamacpp.Server(given)

    def top(self, ids, count=5):
        """The likeliest next tokens with their log-probabilities; the first has to be whole letters."""
        answer = self.ask("completion", prompt=ids, n_predict=1, n_probs=count, temperature=0.0, ignore_eos=True)
        return {row["id"]: row["logprob"] for row in answer["completion_probabilities"][0]["top_logprobs"]}

    def greedy(self, ids, count=64):
        """What follows, also after tokens that end a text, which are not chosen."""
        given = {"n_predict": count, "temperature": 0.0, "ignore_eos": True, "return_tokens": True}
        return self.ask("completion", prompt=ids, **given)["tokens"]

    def tokens(self, text):
        return self.ask("tokenize", content=text, add_special=True, parse_special=True)["tokens"]

    def ask(self, where, **given):
        data, header = json.dumps(given).encode() or None, {"Content-Type": "application/json"}
        request = urllib.request.Request(f"{self.server.listening_address}/{where}", data if given else None, header)
        with urllib.request.urlopen(request) as answer:
            return json.load(answer)


def prompt(model, tokenizer, text):
    """The beginning of a text after which the likeliest token is whole letters, and no end."""
    ids, ends = tokenizer(text).input_ids, ends_of(tokenizer)
    for count in range(12, len(ids)):
        (token,) = expected_top(model, ids[:count], 1)
        if token not in ends and token < len(tokenizer) and "\ufffd" not in tokenizer.decode([token]):
            return ids[:count]
    raise LookupError(text)


def ends_of(tokenizer):
    return [tokenizer.get_vocab()[end] for end in ENDINGS if end in tokenizer.get_vocab()]


def expected_top(model, ids, count=5):
    with torch.no_grad():
        top = model(torch.tensor([ids])).logits[0, -1].float().log_softmax(-1).topk(count)
    return dict(zip(top.indices.tolist(), top.values.tolist(), strict=True))


def expected_greedy(model, ids, tokenizer, count=64):
    """By whole forwards, since the cache of transformers is not what is tested."""
    ids, never = [*ids], ends_of(tokenizer)
    for _ in range(count):
        with torch.no_grad():
            logits = model(torch.tensor([ids])).logits[0, -1]
        logits[never] = -torch.inf
        ids.append(int(logits.argmax()))
    return ids[-count:]
