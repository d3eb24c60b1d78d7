"""The papers that the systems are from, as BibTeX."""

from __future__ import annotations

ANNCUR = """\
@article{yadav2022efficient,
  title   = {Efficient Nearest Neighbor Search for Cross-Encoder Models using Matrix Factorization},
  author  = {Yadav, Nishant and Monath, Nicholas and Angell, Rico and Zaheer, Manzil and McCallum, Andrew},
  journal = {arXiv preprint arXiv:2210.12579},
  year    = {2022}
}"""
CMC = """\
@misc{song2024comparing,
  title  = {Comparing Neighbors Together Makes it Easy: Jointly Comparing Multiple Candidates for Efficient and Effective Retrieval},
  author = {Song, Jonghyun and Jin, Cheyon and Zhao, Wenlong and McCallum, Andrew and Lee, Jay-Yoon},
  year   = {2024}
}"""  # noqa: E501  as it stands in README.md
RAILS = """\
@misc{retrieval-with-learned-similarities,
  title = {Retrieval with Learned Similarities}
}"""
HYPENCODER = """\
@misc{killingback2025hypencoder,
  title  = {Hypencoder: Hypernetworks for Information Retrieval},
  author = {Killingback, Julian and Zeng, Hansi and Zamani, Hamed},
  year   = {2025}
}"""

BY_CLASS = {
    "CrossEncoder": ANNCUR,
    "DualEncoder": ANNCUR,
    "CMC": CMC,
    "DeFormer": CMC,
    "MixEncoder": CMC,
    "PolyEncoder": CMC,
    "SumOfMax": CMC,
    "MoL": RAILS,
    "NextItem": RAILS,
    "NextItemMoL": RAILS,
    "Hypencoder": HYPENCODER,
}
"""By the class of a similarity."""
