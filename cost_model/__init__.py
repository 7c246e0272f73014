"""How long a candidate would take: named features, rankers that learn, rank metrics, model files."""

from tilewright.cost_model.dataset import FAILED, Dataset, DatasetError, TrainingSummary
from tilewright.cost_model.features import FEATURES, features, features_and_prior
from tilewright.cost_model.metrics import (
    Calibration,
    Evaluation,
    MetricError,
    Score,
    calibration,
    evaluate,
    pairwise_accuracy,
    recall_at_k,
    regret_after,
    top_k_score,
)
from tilewright.cost_model.persist import ModelFileError, ModelInfo, load_model, model_info, save_model
from tilewright.cost_model.prior import prior_ns
from tilewright.cost_model.ranker import (
    AbstractRanker,
    HistGradientRanker,
    PriorOnly,
    XGBoostRanker,
    default_ranker,
)
from tilewright.cost_model.schema import Feature, FeatureError, FeatureSchema

__all__ = [
    "FAILED",
    "FEATURES",
    "AbstractRanker",
    "Calibration",
    "Dataset",
    "DatasetError",
    "Evaluation",
    "Feature",
    "FeatureError",
    "FeatureSchema",
    "HistGradientRanker",
    "MetricError",
    "ModelFileError",
    "ModelInfo",
    "PriorOnly",
    "Score",
    "TrainingSummary",
    "XGBoostRanker",
    "calibration",
    "default_ranker",
    "evaluate",
    "features",
    "features_and_prior",
    "load_model",
    "model_info",
    "pairwise_accuracy",
    "prior_ns",
    "recall_at_k",
    "regret_after",
    "save_model",
    "top_k_score",
]
