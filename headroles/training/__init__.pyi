from .hf_trainer import Reporter as Reporter
from .trainer import load_classifier as load_classifier
from .trainer import train as train
