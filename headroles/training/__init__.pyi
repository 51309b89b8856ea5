from .marian import marian as marian
from .marian import pieced as pieced
from .trainer import load_classifier as load_classifier
from .trainer import train as train
