"""The faults that `benchmarks.deliberate_faults` puts into the code."""

from benchmarks.deliberate_faults import ROOT, put_in
from benchmarks.faults import FAULTS


def test_every_fault_fits_into_the_code_of_today():
    for fault in FAULTS:
        put_in(fault, ROOT, dry=True)
        for name in fault.tests.split():
            assert (ROOT / name.partition("::")[0]).exists(), fault
