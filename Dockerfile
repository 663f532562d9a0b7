# sira on a CPU: `docker build -t sira .`, then `docker run --rm sira demo`, or `sira caption /pictures` and so on.
# By default a server, with the bundled model until SIRA_PRESET names another one; its port is open to others, so it needs
# SIRA_API_KEY. What pip installs takes 1.4 GB.
FROM python:3.11-slim

ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PYTHONUNBUFFERED=1 \
    HF_HOME=/cache/huggingface SIRA_HOME=/cache/sira SIRA_PRESET=demo

RUN useradd --create-home --uid 10001 sira \
    && install --directory --owner sira --group sira /cache /pictures

COPY . /src
RUN pip install --extra-index-url https://download.pytorch.org/whl/cpu \
        --constraint /src/constraints.txt "/src[data,heif,json,serve]" \
    && rm -r /src

USER 10001
WORKDIR /pictures
VOLUME ["/cache", "/pictures"]
EXPOSE 8000
HEALTHCHECK --interval=30s --timeout=5s --start-period=600s \
    CMD ["python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:8000/health', timeout=4)"]
ENTRYPOINT ["sira"]
CMD ["serve", "--host", "0.0.0.0"]
