# Bare `make` prints this help.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

# As the lab and the images are built, so that each package is compiled once.
export CGO_ENABLED := 0
export GOFLAGS     := -trimpath
# The toolchain line of go.mod holds, also where the environment names another.
export GOTOOLCHAIN := auto

CACHE   := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/ironlb
TOOLS   := $(CACHE)/bin
# `make lint` vets.
REPORT  := test/gotest -vet=off
PROGRAMS := ./cmd/ironlb-ccm ./cmd/ironlb-speaker ./cmd/ironlb-bgpd ./cmd/kubectl-ironlb

# Modules of the programs that the project builds with and tests against; each has versions of its own.
TOOL_MODULES := test/deploy/oldest test/tools test/tools/apidoc test/tools/containerd test/tools/coredns test/tools/gotestsum test/tools/helm3 test/tools/helm4 test/tools/kubernetes test/tools/metallb test/tools/metallb/frrk8s test/tools/vuln

# The vulnerability database as a module: the Go module proxy has it, and the checksum database verifies it. A newer one:
# `go list -m golang.org/x/vulndb@latest`.
VULNDB := golang.org/x/vulndb@v0.0.0-20261105234957-e22db6528018

# The steps of a target build on one another, so -j does not reorder them.
.NOTPARALLEL:

.PHONY: help build images images-push images-check images-doc images-tool deps root demo demo-shell generate \
	tidy lint vulncheck verify tools

help: ## print this help
	@awk -F':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

build: ## build the programs into ./bin
	go build -trimpath -tags=grpcnotrace -ldflags='-s -w $(STAMP)' -o bin/ $(PROGRAMS)

# Names of images. The default registry exists on no network, so no other party can publish under it.
REGISTRY ?= localhost/ironlb
TAG      ?= v0.1.0
IMAGES   := bin/tools/images

# What the programs print as their version: TAG, and the commit of this checkout, with -dirty if it has changes.
COMMIT  ?= $(shell git describe --always --abbrev=40 --exclude='*' --dirty 2>/dev/null || echo unknown)
STAMPED := github.com/ironlb/ironlb/cmd/internal/version
STAMP    = -X $(STAMPED).tag=$(TAG) -X $(STAMPED).commit=$(COMMIT)

images: images-tool ## build the images into ./bin/images, for amd64 and arm64, without a daemon: REGISTRY=... TAG=...
	@$(IMAGES) build -registry '$(REGISTRY)' -tag '$(TAG)' -commit '$(COMMIT)' deploy/images/ironlb-*.yaml

images-push: images-tool ## push what `make images` built to a registry, with its SBOMs: REGISTRY=registry.example.com/ironlb
	@$(IMAGES) push -registry '$(REGISTRY)' $(if $(filter file,$(origin TAG)),,-tag '$(TAG)')

images-check: images-tool ## build the images twice and compare them; FLAGS=-cold compiles everything again
	@$(IMAGES) check $(FLAGS) -commit '$(COMMIT)' deploy/images/ironlb-*.yaml

images-doc: images ## docs/reference/images.md: packages and sizes, as built
	@$(IMAGES) doc deploy/images/ironlb-*.yaml >bin/images/images.md
	@cp bin/images/images.md docs/reference/images.md

images-tool:
	@go -C deploy/images build -o ../../$(IMAGES) .

deps: ## install the Debian packages that the lab, the demo and the tests need (root)
	@test/lab/packages.sh

root:
	@((EUID == 0)) || { echo 'not root: network namespaces need it; run this as root' >&2; exit 1; }

demo: root deps ## a cluster of three nodes on this machine: Services, a download, a dead node; minutes the first time (root)
	@go run ./test/lab/cmd/demo demo

demo-shell: root deps ## a cluster with kubelets and the chart, left up with KUBECONFIG set until you type exit (root)
	@go run ./test/lab/cmd/demo shell

generate: tools images-tool ## CRDs, deep copies and docs/reference/api.md from pools/v1alpha1, plain manifests and README from the chart, docs/pictures
	$(TOOLS)/controller-gen object paths=./pools/v1alpha1
	$(TOOLS)/controller-gen crd paths=./pools/v1alpha1 output:crd:dir=deploy/chart/ironlb/crds
	$(TOOLS)/crd-ref-docs --source-path=./pools/v1alpha1 --config=docs/reference/api.yaml --renderer=markdown --log-level=ERROR --output-path=docs/reference/api.md
	go run ./test/deploy/render
	go run ./docs/pictures
	$(IMAGES) dockerfile deploy/images/ironlb-*.yaml >bin/Dockerfile
	cmp -s bin/Dockerfile deploy/images/Dockerfile || cp bin/Dockerfile deploy/images/Dockerfile

tidy:
	go mod tidy
	for m in $(TOOL_MODULES); do go -C $$m mod tidy; done
	go -C deploy/images mod tidy

lint: tools ## gofmt, go vet, staticcheck
	@test -z "$$(gofmt -l $$(git ls-files '*.go') | tee /dev/stderr)" || { echo 'run: gofmt -w on the files above' >&2; exit 1; }
	go vet ./...
	$(TOOLS)/staticcheck ./...
	cd deploy/images && go vet ./... && $(TOOLS)/staticcheck ./...
	cd test/deploy/oldest && go vet ./... && $(TOOLS)/staticcheck ./...

vulncheck: tools ## fail on a known vulnerability that the programs call and test/vulncheck/accepted.txt lacks: 2 minutes
	@db=$$(cd test/tools/vuln && go mod download -json $(VULNDB) | sed -n 's/^\t"Dir": "\(.*\)",$$/\1/p') && [ -d "$$db" ] || \
		{ echo 'no vulnerability database: the Go module proxy does not give $(VULNDB)' >&2; exit 1; }; \
	$(TOOLS)/govulncheck -format json -db "file://$$db/data/osv" -tags=grpcnotrace $(PROGRAMS) | go run ./test/vulncheck test/vulncheck/accepted.txt

verify: ## what must hold for every commit: generated files, go.mod, format and lint are clean, and no new vulnerability
	@before=$$(git status --porcelain; git diff | git hash-object --stdin); \
	$(MAKE) generate tidy lint vulncheck; \
	after=$$(git status --porcelain; git diff | git hash-object --stdin); \
	[ "$$before" = "$$after" ] || { git --no-pager diff --stat; echo 'generated files or go.mod were not up to date: commit the changes above' >&2; exit 1; }

# As pinned in test/tools/go.mod; go builds again only what is not up to date.
tools:
	@go -C test/tools build -o $(TOOLS)/ sigs.k8s.io/controller-tools/cmd/controller-gen honnef.co/go/tools/cmd/staticcheck
	@go -C test/tools/apidoc build -o $(TOOLS)/ github.com/elastic/crd-ref-docs
	@go -C test/tools/vuln build -o $(TOOLS)/ golang.org/x/vuln/cmd/govulncheck

include release.mk test.mk bench.mk
