# A release: RELEASING.md has the steps.

.PHONY: release release-push

RELEASE = bin/release/$(VERSION)

release: images-tool ## everything that is published, into ./bin/release: VERSION=v0.1.0 REGISTRY=... KEY=cosign.key
	@$(IMAGES) release -out '$(RELEASE)' -tag '$(VERSION)' -commit '$(COMMIT)' -registry '$(REGISTRY)' -key '$(KEY)' \
		-url '$(URL)' -builder '$(BUILDER)' -artifacthub-id '$(ARTIFACTHUB_ID)' $(FLAGS) deploy/images/ironlb-*.yaml

release-push: images-tool ## push images, chart and signatures of a release: VERSION=v0.1.0 REGISTRY=...
	@$(IMAGES) push -out '$(RELEASE)' -registry '$(REGISTRY)'
