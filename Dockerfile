# A server for the tasks of one run, on CPUs:
#   docker build -t spacecl --build-arg PIP_EXTRA_INDEX_URL=URL .
# where URL is PyTorch's package index for CPUs, as its installation page names it; without it, torch brings gigabytes of CUDA.
#   docker run -p 8080:8080 -v "$PWD/runs/c10:/run/tasks:ro" spacecl
# With tokens:
#   docker run -p 8080:8080 -v "$PWD/runs/c10:/run/tasks:ro" -v "$PWD/tokens:/run/tokens:ro" spacecl \
#       /run/tasks --host 0.0.0.0 --token-file /run/tokens
FROM python:3.12-slim

WORKDIR /spacecl
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY src src
ARG PIP_EXTRA_INDEX_URL
RUN pip install --no-cache-dir -c constraints.txt ".[serve]" \
    && useradd --create-home spacecl

USER spacecl
WORKDIR /home/spacecl
EXPOSE 8080
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8080/v2/health/ready', timeout=4)"]
ENTRYPOINT ["spacecl", "serve"]
CMD ["/run/tasks", "--host", "0.0.0.0"]
