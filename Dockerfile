# A saved folder behind HTTP: `docker build --build-arg MODEL=models/tatoeba-en-de --tag translator .`
# It takes the wheel in dist/, of `make wheel` or downloaded: no image has a compiler.
# TORCH_INDEX may name PyTorch's index of builds for CPUs, which are some gigabytes smaller.
# The digest is that of docker-library/repo-info (July and August 2026, Python 3.11.15).
FROM python:3.11-slim@sha256:90744cff8f32887f075c47d747a173ff333e9e98801667af93c357fa9f5e28ff
COPY dist/*.whl constraints.txt /wheels/
ARG TORCH_INDEX
RUN pip install --no-cache-dir torch==2.13.0 ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} \
    && pip install --no-cache-dir --constraint /wheels/constraints.txt "$(echo /wheels/*.whl)[serve]"
ARG MODEL=models/tatoeba-en-de
COPY --chown=65534 ${MODEL} /model
USER 65534
ENV HF_HUB_OFFLINE=1 HF_HOME=/tmp OMP_WAIT_POLICY=PASSIVE
EXPOSE 8080
CMD ["reluformers", "serve", "/model", "--host", "0.0.0.0"]
