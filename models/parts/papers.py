"""Papers that several systems are from, as BibTeX; they stand in README.md too."""

from __future__ import annotations

__all__ = ["ANNCUR", "CMC", "HYPENCODER", "RAILS"]

ANNCUR = """\
@article{yadav2022efficient,
  title   = {Efficient Nearest Neighbor Search for Cross-Encoder Models using Matrix Factorization},
  author  = {Yadav, Nishant and Monath, Nicholas and Angell, Rico and Zaheer, Manzil and McCallum, Andrew},
  journal = {arXiv preprint arXiv:2210.12579},
  year    = {2022}
}"""
AXN = """\
@inproceedings{yadav2024adaptive,
  title     = {Adaptive Retrieval and Scalable Indexing for k-NN Search with Cross-Encoders},
  author    = {Yadav, Nishant and others},
  booktitle = {International Conference on Learning Representations},
  year      = {2024}
}"""
CMC = """\
@misc{song2024comparing,
  title  = {Comparing Neighbors Together Makes it Easy: Jointly Comparing Multiple Candidates for Efficient and Effective Retrieval},
  author = {Song, Jonghyun and Jin, Cheyon and Zhao, Wenlong and McCallum, Andrew and Lee, Jay-Yoon},
  year   = {2024}
}"""  # noqa: E501  as it stands in README.md
RAILS = """\
@inproceedings{ding2025retrieval,
  title     = {Retrieval with Learned Similarities},
  author    = {Ding, Bailu and Zhai, Jiaqi},
  booktitle = {Proceedings of the ACM Web Conference},
  note      = {arXiv:2407.15462},
  year      = {2025}
}"""
HYPENCODER = """\
@misc{killingback2025hypencoder,
  title  = {Hypencoder: Hypernetworks for Information Retrieval},
  author = {Killingback, Julian and Zeng, Hansi and Zamani, Hamed},
  year   = {2025}
}"""
