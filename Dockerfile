# An image that checks and runs plans: docker build -t planc .
#
# PyTorch comes with its CUDA build from the package index. For CPUs alone, pass another index:
#   docker build --build-arg PIP_EXTRA_INDEX_URL=... -t planc .
ARG PYTHON=3.12
FROM python:${PYTHON}-slim AS wheel
WORKDIR /source
COPY pyproject.toml hatch_build.py README.md LICENSE ./
COPY grammar grammar
COPY planc planc
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM python:${PYTHON}-slim
ARG PIP_EXTRA_INDEX_URL=""
# git: `planc review` and `planc diff git:...`; the compiler: torch.compile.
RUN apt-get update \
 && apt-get install --yes --no-install-recommends git g++ \
 && rm -rf /var/lib/apt/lists/*
COPY constraints.txt /tmp/constraints.txt
COPY --from=wheel /wheels /wheels
RUN wheel=$(ls /wheels/planc-*.whl) \
 && pip install --no-cache-dir --constraint /tmp/constraints.txt "${wheel}[run]" \
 && rm -rf /wheels /tmp/constraints.txt
# Not root; a volume for runs is mounted where the plan's --run-dir is.
RUN useradd --create-home planc
USER planc
WORKDIR /home/planc
ENV OMP_NUM_THREADS=1
CMD ["planc", "--help"]
