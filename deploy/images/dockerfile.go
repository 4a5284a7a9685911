package main

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
)

const dockerfileHead = `# Generated from the specs in this folder: make generate. It has the same programs, packages, paths and users as
# "make images", for those who build with docker (BuildKit). From the root of the repository:
#   docker build -f deploy/images/Dockerfile --target ironlb-speaker -t REGISTRY/ironlb-speaker:TAG \
#     --build-arg VERSION=TAG --build-arg COMMIT=$(git rev-parse HEAD) .
# The packages that debootstrap calls essential are there too, so the image of the speaker is larger.
ARG GO_IMAGE=golang:1.26-bookworm
ARG DEBIAN_IMAGE=debian:%s-slim

FROM --platform=$BUILDPLATFORM ${GO_IMAGE} AS source
WORKDIR /src
COPY . .
`

// dockerfile renders specs as one Dockerfile with a target for each image. root is docker's build context.
func dockerfile(root string, specs []*Spec) (string, error) {
	release := ""
	for _, s := range specs {
		if s.Debian == nil {
			continue
		}
		if release != "" && release != s.Debian.Release {
			return "", fmt.Errorf("%s: debian.release: %s, but another image has %s: use one release", s.file, s.Debian.Release, release)
		}
		release = s.Debian.Release
	}
	var b strings.Builder
	fmt.Fprintf(&b, dockerfileHead, release)
	for _, s := range specs {
		if err := s.stages(&b, root); err != nil {
			return "", fmt.Errorf("%s: %w", s.file, err)
		}
	}
	return b.String(), nil
}

func (s *Spec) stages(b *strings.Builder, root string) error {
	fmt.Fprintf(b, "\nFROM source AS build-%s\nARG TARGETOS TARGETARCH\nARG VERSION=unknown COMMIT=unknown\n", s.Name)
	for _, p := range s.Programs {
		if p.Module == "" {
			return fmt.Errorf("program %s: a Dockerfile needs module and package", p.Path)
		}
		module, err := relativeTo(root, s.relative(p.Module))
		if err != nil {
			return err
		}
		fmt.Fprintf(b, "RUN CGO_ENABLED=0 GOOS=$TARGETOS GOARCH=$TARGETARCH go -C %s build -trimpath -buildvcs=false \\\n"+
			"    -tags=%s -ldflags=%q -o /out%s %s\n", module, strings.Join(p.Tags, ","), p.Ldflags, p.Path, p.Package)
	}
	base := "scratch"
	if s.Debian != nil {
		base = "${DEBIAN_IMAGE}"
	}
	fmt.Fprintf(b, "\nFROM %s AS %s\n", base, s.Name)
	if s.Debian != nil {
		var names []string
		for _, p := range s.Debian.Packages {
			names = append(names, p.Name)
		}
		fmt.Fprintf(b, "RUN apt-get update && \\\n    apt-get install -y --no-install-recommends %s && \\\n"+
			"    rm -rf /var/lib/apt/lists/*\n", strings.Join(names, " "))
	}
	fmt.Fprintf(b, "COPY --from=build-%s /out/ /\n", s.Name)
	for _, f := range s.Files {
		if f.Content == "" {
			return fmt.Errorf("file %s: a Dockerfile needs its content in the spec", f.Path)
		}
		// Debian's base image has more users, which its packages refer to.
		if s.Debian != nil && (f.Path == "/etc/passwd" || f.Path == "/etc/group") {
			continue
		}
		mode := f.Mode
		if mode == "" {
			mode = "0644"
		}
		fmt.Fprintf(b, "COPY --chmod=%s <<'EOF' %s\n%sEOF\n", mode, f.Path, f.Content)
	}
	if len(s.Dirs) > 0 || len(s.Symlinks) > 0 {
		return fmt.Errorf("directories and symlinks are not supported in a Dockerfile")
	}
	fmt.Fprintf(b, "ENV PATH=%s\n", s.Path)
	for _, e := range s.Env {
		fmt.Fprintf(b, "ENV %s\n", e)
	}
	labels := map[string]string{"org.opencontainers.image.title": s.Name, "org.opencontainers.image.description": s.Description}
	for k, v := range s.Labels {
		labels[k] = v
	}
	var keys []string
	for k := range labels {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	for _, k := range keys {
		fmt.Fprintf(b, "LABEL %s=%q\n", k, labels[k])
	}
	fmt.Fprintf(b, "USER %s\nENTRYPOINT %s\n", s.User, jsonList(s.Entrypoint))
	if len(s.Cmd) > 0 {
		fmt.Fprintf(b, "CMD %s\n", jsonList(s.Cmd))
	}
	return nil
}

func jsonList(list []string) string {
	data, _ := json.Marshal(list) // strings always marshal
	return string(data)
}

// relativeTo returns a path as seen from a folder, with slashes.
func relativeTo(root, p string) (string, error) {
	a, err := filepath.Abs(root)
	if err != nil {
		return "", err
	}
	full, err := filepath.Abs(p)
	if err != nil {
		return "", err
	}
	rel, err := filepath.Rel(a, full)
	return filepath.ToSlash(rel), err
}
