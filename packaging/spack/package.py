"""Spack recipe of nearmetal. Checked as Python and by its fields; not built by Spack yet."""

from spack.package import *


class Nearmetal(PythonPackage):
    """Measure, explain, close and predict the gap between native and virtualized network paths."""

    license("Apache-2.0")

    # No release yet: `spack dev-build nearmetal@main` in a checkout.
    version("main")

    variant("ssh", default=True, description="Measure machines that ssh reaches")
    variant("history", default=False, description="Keep many runs in one DuckDB file")

    depends_on("c", type=("build", "run"))
    depends_on("cxx", type="build")

    depends_on("python@3.11:", type=("build", "run"))
    depends_on("cmake@3.25:", type="build")
    depends_on("ninja", type="build")
    depends_on("py-scikit-build-core@1.1:", type="build")
    depends_on("py-nanobind@3.1:", type="build")

    depends_on("py-click@8.1:", type="run")
    depends_on("py-h11@0.14:", type="run")
    depends_on("py-numpy@2.1:", type="run")
    depends_on("py-pyarrow@18:", type="run")
    depends_on("py-pydantic@2.9:", type="run")
    depends_on("py-rich@13:", type="run")
    depends_on("py-rtoml@0.14:", type="run")
    depends_on("py-scipy@1.13:", type="run")
    depends_on("py-starlette@0.40:", type="run")
    depends_on("py-uvicorn@0.30:", type="run")
    depends_on("py-asyncssh@2.18:", type="run", when="+ssh")
    depends_on("py-duckdb@1.2:", type="run", when="+history")

    # The engine is compiled at first use with the mpicc of the MPI that is measured.
    depends_on("mpi", type="run")
    depends_on("iproute2", type="run")

    import_modules = ["nearmetal", "nearmetal.cli.main"]
