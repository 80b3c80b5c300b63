"""A constructor parameter named `transform`, a name that scikit-learn reserves for a method."""

from __future__ import annotations

from inspect import signature
from typing import Any


class ParameterBesideMethod:
    """Stores as the parameter, reads as the class's own method of that name, if it has one."""

    def __init__(self, method: Any) -> None:
        self.method = method

    def __get__(self, instance: object | None, owner: type) -> Any:
        if self.method is None:
            raise AttributeError(
                f"{owner.__name__} has no method transform; read the parameter with get_params()['transform']."
            )
        return self.method if instance is None else self.method.__get__(instance, owner)

    def __set__(self, instance: object, value: Any) -> None:
        vars(instance)["transform"] = value


class HasTransformParameter:
    """Lets ``cls(transform="dct")`` coexist with what scikit-learn takes an attribute `transform` to be.

    The instance keeps the parameter under its own name, where `get_params`, `set_params`, `clone` and `pickle`
    find it. Attribute access gives the method: ``hasattr(estimator, "transform")`` is how scikit-learn asks
    whether an estimator is a transformer. Must be the first base, to wrap what other bases make of the method.
    """

    transform: Any = ParameterBesideMethod(None)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "transform" in vars(cls):
            cls.transform = ParameterBesideMethod(vars(cls)["transform"])

    def get_params(self, deep: bool = True) -> dict[str, Any]:  # noqa: ARG002
        """Get parameters for this estimator.

        Parameters
        ----------
        deep : bool, default=True
            Without effect: no parameter is an estimator itself.

        Returns
        -------
        dict
            Parameter names mapped to their values.
        """
        return {name: vars(self)[name] for name in signature(type(self)).parameters}
