"""Exact arithmetic: an evaluator of untrusted expressions, numbers as text, and comparison of answers."""

import ast
import operator
import re
from collections.abc import Callable
from fractions import Fraction

MAX_LENGTH = 500  # characters of an expression
_MAX_BITS = 512  # of a numerator or denominator: about 150 digits
_MAX_EXPONENT = 200
_OPERATORS: dict[type, Callable] = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul}
_OPERATORS |= {ast.Div: operator.truediv, ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod}
_LITERAL = re.compile(r"\d+(\.\d*)?|\.\d+", re.ASCII)
_NUMBER = re.compile(r"([-+−]?)\s*[$€£]?\s*(\d{1,3}(?:,\d{3})+|\d{1,60})?(\.\d{0,60})?\s*\.?", re.ASCII)


def evaluate(expression: str) -> Fraction:
    """Compute the exact value of an expression of numbers, ``+ - * / // % **`` and parentheses.
    Raises ValueError if the expression holds anything else, divides by zero, or is too long, or if a value is too large."""
    if len(expression) > MAX_LENGTH:
        raise ValueError(f"the expression has {len(expression)} characters; {MAX_LENGTH} are allowed.")
    source = " ".join(expression.split())
    if invalid := re.search(r"[^\d.+\-*/%() ]", source, re.ASCII):
        raise ValueError(f"{invalid.group()!r} is not allowed: write plain numbers, + - * / // % ** and parentheses.")
    try:
        return _value(ast.parse(source, mode="eval").body, source)
    except (SyntaxError, MemoryError, RecursionError):
        raise ValueError(f"{_quote(source)} is not an arithmetic expression, or nested too deeply.") from None
    except ZeroDivisionError:
        raise ValueError("division by zero.") from None


def _value(node: ast.expr, source: str) -> Fraction:
    match node:
        case ast.Constant():
            # Read from the source: the parsed float may have lost digits.
            literal = source[node.col_offset : node.end_col_offset]
            if not _LITERAL.fullmatch(literal):
                raise ValueError(f"{_quote(literal)} is not a plain number such as 12 or 0.75.")
            return _check_size(Fraction(literal))
        case ast.UnaryOp(op=ast.USub()):
            return -_value(node.operand, source)
        case ast.UnaryOp(op=ast.UAdd()):
            return _value(node.operand, source)
        case ast.BinOp(op=ast.Pow()):
            return _power(_value(node.left, source), _value(node.right, source))
        case ast.BinOp(op=op) if type(op) in _OPERATORS:
            return _check_size(Fraction(_OPERATORS[type(op)](_value(node.left, source), _value(node.right, source))))
    raise ValueError("write plain numbers, + - * / // % ** and parentheses.")


def _power(base: Fraction, exponent: Fraction) -> Fraction:
    if exponent.denominator != 1 or abs(exponent) > _MAX_EXPONENT:
        raise ValueError(f"an exponent must be a whole number of at most {_MAX_EXPONENT}.")
    # Check before computing the power: the result has about this many bits.
    if max(base.numerator.bit_length(), base.denominator.bit_length()) * abs(exponent) > 2 * _MAX_BITS:
        raise ValueError("the number is too large.")
    return _check_size(base ** int(exponent))


def _check_size(value: Fraction) -> Fraction:
    if max(value.numerator.bit_length(), value.denominator.bit_length()) > _MAX_BITS:
        raise ValueError("the number is too large.")
    return value


def _quote(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:60] + "…")


def number_text(value: Fraction | int) -> str:
    """Write a terminating decimal in full, ``"12.5"``; any other number rounded and as a fraction, ``"3.333333 (10/3)"``."""
    value = Fraction(value)
    digits = decimals(value)
    if digits is None:
        return f"{float(value):.6f} ({value})"
    scaled = abs(value.numerator) * 10**digits // value.denominator
    whole, rest = divmod(scaled, 10**digits)
    text = f"{whole}.{rest:0{digits}d}" if digits else str(whole)
    return "-" + text if value < 0 else text


def decimals(value: Fraction) -> int | None:
    """Count the digits after the decimal point; None if they never end."""
    rest, count = value.denominator, 0
    for factor in (2, 5):
        power = 0
        while rest % factor == 0:
            rest, power = rest // factor, power + 1
        count = max(count, power)
    return count if rest == 1 else None


def parse_number(text: str) -> Fraction | None:
    """Parse a text that is one number, such as ``"$1,234.50"`` or ``"-7."``; None for any other text, such as ``"42%"``."""
    found = _NUMBER.fullmatch(text.strip())
    if not found:
        return None
    sign, whole, rest = found.groups()
    digits = (whole or "").replace(",", "") + (rest or "")
    if not any(map(str.isdigit, digits)):
        return None
    value = Fraction("0" + digits.rstrip(".")) if "." in digits else Fraction(digits)
    return -value if sign in ("-", "−") else value


def normalize_text(text: str) -> str:
    """Normalize a text for comparison: strip white space, quotes and full stops, fold case, use single spaces."""
    return " ".join(text.strip(" .'\"\n\t").casefold().split())


def same_answer(answer: str, gold: str) -> bool:
    """Whether an answer equals the gold one: as a number in any notation if the gold one is a number, else as text."""
    number = parse_number(gold)
    return normalize_text(answer) == normalize_text(gold) if number is None else parse_number(answer) == number
