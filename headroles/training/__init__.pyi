from .reporting import Reporter as Reporter
from .reporting import ScoreReport as ScoreReport
from .trainer import load_classifier as load_classifier
from .trainer import train as train
