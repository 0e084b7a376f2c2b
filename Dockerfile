# `tamis serve` with the bundled models and without torch: `docker build -t tamis .`, or `docker compose up --build`.
ARG PYTHON=3.13-slim-trixie

FROM python:${PYTHON} AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_NO_INPUT=1 PIP_ROOT_USER_ACTION=ignore
RUN python -m venv /opt/tamis
WORKDIR /src
# Others' packages, each file by its checksum; before our own sources, which change more often.
COPY constraints constraints
RUN python -m pip install --no-deps --require-hashes -r constraints/release.txt
RUN /opt/tamis/bin/pip install --no-deps --require-hashes -r constraints/core.txt
COPY pyproject.toml README.md LICENSE NOTICE ./
COPY src src
RUN python -m pip wheel --no-deps --no-build-isolation --wheel-dir dist .
RUN /opt/tamis/bin/pip install --no-deps dist/*.whl
# The compiled search kernels, so that a container need not compile them at each start. They are known by the times of
# their sources, of which the layers of an image keep whole seconds.
ENV NUMBA_CACHE_DIR=/opt/tamis/kernels
RUN find /opt/tamis/lib/python*/site-packages/tamis/index -name '*.py' -exec sh -c 'touch -d "@$(stat -c %Y "$1")" "$1"' _ {} \;
RUN /opt/tamis/bin/python -c "from tamis.index.warm import warm; warm('lucene'); warm('exact')"

FROM python:${PYTHON}
COPY --from=build /opt/tamis /opt/tamis
# Nothing is written but under /tmp: the kernels are copied there, where a machine of another kind can add its own.
ENV PATH=/opt/tamis/bin:$PATH \
    NUMBA_CACHE_DIR=/tmp/kernels \
    TAMIS_CACHE= \
    PYTHONDONTWRITEBYTECODE=1
USER 10001:10001
EXPOSE 8000
HEALTHCHECK --start-period=120s --interval=30s --timeout=10s \
    CMD ["python", "-c", "from http.client import HTTPConnection as C; c = C('127.0.0.1', 8000, timeout=5); c.request('GET', '/readyz'); raise SystemExit(c.getresponse().status != 200)"]
ENTRYPOINT ["/bin/sh", "-c", "cp -R --no-preserve=mode /opt/tamis/kernels /tmp/; exec tamis \"$@\"", "tamis"]
CMD ["serve", "/index", "--host", "0.0.0.0"]
