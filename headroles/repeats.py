"""Random tokens, each sequence twice in a row: what induction heads are told by."""

from __future__ import annotations

from random import Random

from transformers import PreTrainedTokenizerBase

from headroles.text import Corpus, Tokens

LENGTH = 25  # tokens of one half


def repeated(tokenizer: PreTrainedTokenizerBase, count: int = 100, *, length: int = LENGTH, seed: int = 0) -> Corpus:
    """`count` sequences of `length` random tokens and the same once more, after the tokenizer's BOS if it has one.

    No token occurs twice in one half, none is special (Olsson et al. 2022). They are given as ids: as text they might
    be cut into other tokens. Raises ValueError if the vocabulary has fewer tokens than `length`.
    """
    added = {*tokenizer.all_special_ids, *tokenizer.added_tokens_decoder}
    plain = sorted({*tokenizer.get_vocab().values()} - added)
    if len(plain) < length:
        raise ValueError(f"the vocabulary has {len(plain)} tokens that are not special; give a length of at most that")
    start = () if tokenizer.bos_token_id is None else (tokenizer.bos_token_id,)
    rng = Random(seed)
    halves = [tuple(rng.sample(plain, length)) for _ in range(count)]
    rows = [(*start, *half, *half) for half in halves]
    return Corpus(f"repeated-{length}", tuple(Tokens(str(tokenizer.decode(list(ids))), ids=ids) for ids in rows))
