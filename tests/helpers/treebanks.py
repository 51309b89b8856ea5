"""A German sentence with multiword tokens."""

from __future__ import annotations

from headroles.data.corpus import Sentence

GERMAN = """# text = Er geht zum Arzt.
1	Er	er	PRON	_	_	2	nsubj	_	_
2	geht	gehen	VERB	_	_	0	root	_	_
3-4	zum	_	_	_	_	_	_	_	_
3	zu	zu	ADP	_	_	5	case	_	_
4	dem	der	DET	_	_	5	det	_	_
5	Arzt	Arzt	NOUN	_	_	2	obl	_	SpaceAfter=No
5.1	ging	gehen	VERB	_	_	_	_	_	_
6	.	.	PUNCT	_	_	2	punct	_	_
"""
ZUM = Sentence(
    "Er geht zum Arzt.",
    spans=((0, 2), (3, 7), None, None, (12, 16), (16, 17)),
    heads=(1, -1, 4, 4, 1, 1),
    relations=("nsubj", "root", "case", "det", "obl", "punct"),
)
