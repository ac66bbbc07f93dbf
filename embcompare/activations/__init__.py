"""Hidden states of a model on a corpus, captured once, streamed to disk, and shared by all experiments.

Layer 0 is the embedding output, layer k the output of block k, and the last layer, where the model has a final norm,
the state after it, as transformers numbers them; the last block's own output is then kept as well. Rows are the
tokens of the text, in the order of the corpus: special tokens and pads never enter. Batches are padded on the right,
whatever the tokenizer would do, so that every token stands at the position it has in an unpadded input.

Of an encoder-decoder the encoder is captured: the decoder's states depend on a second text.
"""

from embcompare.activations.capturing import capture
from embcompare.activations.states import KINDS, HiddenStates, Kind

__all__ = ["KINDS", "HiddenStates", "Kind", "capture"]
