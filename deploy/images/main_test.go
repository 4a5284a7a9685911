package main

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/validate"
)

// smallSpec builds one Go program for two platforms.
const smallSpec = `
name: small
description: a program that prints a line
platforms: [linux/amd64, linux/arm64]
programs:
  - {module: ., package: ., path: /usr/local/bin/small, ldflags: -s -w}
directories:
  - {path: /tmp, mode: "1777"}
  - {path: /data, owner: "65532:65532"}
symlinks:
  - {path: /small, target: usr/local/bin/small}
files:
  - {path: /etc/passwd, content: "root:x:0:0:root:/:/sbin/nologin\n"}
user: "65532:65532"
path: /usr/local/bin
env: [A=b]
entrypoint: [small]
`

func write(t *testing.T, name, content string) string {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
	return name
}

// writeSmall writes the small image's spec and program into a folder of its own.
func writeSmall(t *testing.T) string {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "go.mod"), "module example.test/small\n\ngo 1.26.0\n")
	write(t, filepath.Join(dir, "main.go"), "package main\n\nfunc main() { println(\"small\") }\n")
	return write(t, filepath.Join(dir, "small.yaml"), smallSpec)
}

// buildInto runs the builder with a cache and an output folder and returns what it printed.
func buildInto(t *testing.T, cache, out string, args ...string) (string, error) {
	t.Helper()
	var printed bytes.Buffer
	err := build(t.Context(), append([]string{"-cache", cache, "-out", out}, args...), &progress{w: &printed})
	return printed.String(), err
}

func mustBuild(t *testing.T, out string, args ...string) string {
	t.Helper()
	printed, err := buildInto(t, t.TempDir(), out, args...)
	if err != nil {
		t.Fatal(err)
	}
	return printed
}

// Two checkouts in different folders, with different caches, build identical files.
func TestReproducible(t *testing.T) {
	outs := []string{t.TempDir(), t.TempDir()}
	for _, out := range outs {
		mustBuild(t, out, writeSmall(t))
	}
	n, err := compare(outs[0], outs[1])
	if err != nil {
		t.Error(err)
	}
	if n < 9 { // two archives, two SBOMs, the state, and the layout
		t.Errorf("%d files compared", n)
	}
	t.Setenv("SOURCE_DATE_EPOCH", "1000000000")
	other := t.TempDir()
	mustBuild(t, other, writeSmall(t))
	if _, err := compare(outs[0], other); err == nil {
		t.Error("compare finds no difference between images with different timestamps")
	}
}

func TestLayerIsNormalized(t *testing.T) {
	out := t.TempDir()
	mustBuild(t, out, "-platform", "linux/arm64", writeSmall(t))
	img, err := tarball.ImageFromPath(filepath.Join(out, "small-linux-arm64.tar"), nil)
	if err != nil {
		t.Fatal(err)
	}
	layers, err := img.Layers()
	if err != nil || len(layers) != 1 {
		t.Fatalf("%d layers: %v", len(layers), err)
	}
	r, err := layers[0].Uncompressed()
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for tr := tar.NewReader(r); ; {
		h, err := tr.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if !h.ModTime.Equal(time.Unix(0, 0)) || h.Uname != "" || h.Gname != "" {
			t.Errorf("%s: time %s, owner %q, group %q", h.Name, h.ModTime, h.Uname, h.Gname)
		}
		got = append(got, fmt.Sprintf("%s %o %d:%d %s", h.Name, h.Mode, h.Uid, h.Gid, h.Linkname))
	}
	want := []string{
		"data/ 755 65532:65532 ", "etc/ 755 0:0 ", "etc/passwd 644 0:0 ", "small 777 0:0 usr/local/bin/small", "tmp/ 1777 0:0 ",
		"usr/ 755 0:0 ", "usr/local/ 755 0:0 ", "usr/local/bin/ 755 0:0 ", "usr/local/bin/small 755 0:0 ",
		"usr/share/ 755 0:0 ", "usr/share/doc/ 755 0:0 ", "usr/share/doc/small/ 755 0:0 ", "usr/share/doc/small/copyright 644 0:0 ",
	}
	if !slices.Equal(got, want) {
		t.Errorf("entries:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	cfg, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	if cfg.Architecture != "arm64" || cfg.Config.User != "65532:65532" || !slices.Equal(cfg.Config.Env, []string{"PATH=/usr/local/bin", "A=b"}) ||
		cfg.Config.Labels["org.opencontainers.image.version"] != "v0.1.0" || !slices.Equal(cfg.Config.Entrypoint, []string{"small"}) {
		t.Errorf("configuration: %+v", cfg)
	}
}

// An archive is valid both as a docker archive and as an OCI layout, with the same image.
func TestArchive(t *testing.T) {
	out, dir := t.TempDir(), t.TempDir()
	mustBuild(t, out, "-platform", "linux/amd64", "-ref", "small=example.test/a/small:1", writeSmall(t))
	file := filepath.Join(out, "small-linux-amd64.tar")
	tag, err := name.NewTag("example.test/a/small:1")
	if err != nil {
		t.Fatal(err)
	}
	docker, err := tarball.ImageFromPath(file, &tag)
	if err != nil {
		t.Fatal(err)
	}
	if err := validate.Image(docker); err != nil {
		t.Error(err)
	}
	if out, err := exec.Command("tar", "-C", dir, "-xf", file).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	p, err := layout.FromPath(dir)
	if err != nil {
		t.Fatal(err)
	}
	root, err := p.ImageIndex()
	if err != nil {
		t.Fatal(err)
	}
	if err := validate.Index(root); err != nil {
		t.Error(err)
	}
	m, err := root.IndexManifest()
	if err != nil || len(m.Manifests) != 1 {
		t.Fatalf("%v: %+v", err, m)
	}
	d := m.Manifests[0]
	if d.Annotations["io.containerd.image.name"] != "example.test/a/small:1" || d.Platform.String() != "linux/amd64" {
		t.Errorf("descriptor: %+v", d)
	}
	oci, err := root.Image(d.Digest)
	if err != nil {
		t.Fatal(err)
	}
	a, errA := docker.ConfigName()
	b, errB := oci.ConfigName()
	if a != b || errA != nil || errB != nil {
		t.Errorf("image %s %v as docker archive, %s %v as OCI layout", a, errA, b, errB)
	}
}

// A build with the same input leaves the archive as it is; a changed program, spec or reference does not.
func TestUnchanged(t *testing.T) {
	spec, out, cache := writeSmall(t), t.TempDir(), t.TempDir()
	archive := filepath.Join(out, "small-linux-amd64.tar")
	run := func(args ...string) (string, os.FileInfo) {
		t.Helper()
		printed, err := buildInto(t, cache, out, append(args, "-platform", "linux/amd64", spec)...)
		if err != nil {
			t.Fatal(err)
		}
		info, err := os.Stat(archive)
		if err != nil {
			t.Fatal(err)
		}
		return printed, info
	}
	_, first := run()
	printed, second := run()
	if !os.SameFile(first, second) || !strings.Contains(printed, "unchanged") {
		t.Errorf("built again from the same input: %s", printed)
	}
	_, third := run("-tag", "v0.2.0")
	if os.SameFile(second, third) {
		t.Error("not built again with another tag")
	}
	write(t, filepath.Join(filepath.Dir(spec), "main.go"), "package main\n\nfunc main() { println(\"other\") }\n")
	_, fourth := run("-tag", "v0.2.0")
	if os.SameFile(third, fourth) {
		t.Error("not built again with a changed program")
	}
	if err := os.Remove(archive); err != nil {
		t.Fatal(err)
	}
	run("-tag", "v0.2.0")
}

// With -bin, a prebuilt program is used, for this machine's platform.
func TestBin(t *testing.T) {
	bin, out := t.TempDir(), t.TempDir()
	source := exec.Command("go", "build", "-o", filepath.Join(bin, "small"), ".")
	source.Dir, source.Env = filepath.Dir(writeSmall(t)), append(os.Environ(), "CGO_ENABLED=0")
	if out, err := source.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	spec := write(t, filepath.Join(t.TempDir(), "small.yaml"), strings.Replace(smallSpec, "module: .", "module: missing", 1))
	host := runtime.GOOS + "/" + runtime.GOARCH
	mustBuild(t, out, "-bin", bin, "-platform", host, spec)
	_, err := buildInto(t, t.TempDir(), t.TempDir(), "-platform", host, spec)
	if err == nil || !strings.Contains(err.Error(), "missing has no go.mod") {
		t.Errorf("without -bin: %v", err)
	}
}

// The layout has an index for each image, an SBOM for each platform, and no blob without a manifest.
func TestLayout(t *testing.T) {
	spec, out, cache := writeSmall(t), t.TempDir(), t.TempDir()
	blobs := func() int {
		files, err := filepath.Glob(filepath.Join(out, "oci", "blobs", "sha256", "*"))
		if err != nil {
			t.Fatal(err)
		}
		return len(files)
	}
	if _, err := buildInto(t, cache, out, spec); err != nil {
		t.Fatal(err)
	}
	first := blobs()
	write(t, filepath.Join(filepath.Dir(spec), "main.go"), "package main\n\nfunc main() { println(\"other\") }\n")
	if _, err := buildInto(t, cache, out, spec); err != nil {
		t.Fatal(err)
	}
	if second := blobs(); first != second || first != 12 { // index; 2 manifests, configurations, layers; 2 SBOMs with manifests; "{}"
		t.Errorf("%d blobs, then %d; want 12", first, second)
	}
	p, err := layout.FromPath(filepath.Join(out, "oci"))
	if err != nil {
		t.Fatal(err)
	}
	root, err := p.ImageIndex()
	if err != nil {
		t.Fatal(err)
	}
	if err := validate.Index(root, validate.Fast); err != nil {
		t.Error(err)
	}
}

// An SBOM has unique names, relations between what it has, and each program's modules.
func TestSBOM(t *testing.T) {
	out := t.TempDir()
	mustBuild(t, out, "-platform", "linux/amd64", writeSmall(t))
	data, err := os.ReadFile(filepath.Join(out, "small-linux-amd64.spdx.json"))
	if err != nil {
		t.Fatal(err)
	}
	purls := checkSPDX(t, data)
	if want := `"name": "stdlib",`; !regexp.MustCompile(want + `[^}]*"licenseDeclared": "BSD-3-Clause"`).Match(data) {
		t.Errorf("the standard library has no license in %s", data)
	}
	for _, want := range []string{"pkg:golang/example.test/small@v0.1.0", "pkg:golang/stdlib@" + strings.TrimPrefix(runtime.Version(), "go")} {
		if !slices.Contains(purls, want) {
			t.Errorf("no %s in %v", want, purls)
		}
	}
}

var validSPDXID = regexp.MustCompile(`^SPDXRef-[A-Za-z0-9.-]+$`)

func checkSPDX(t *testing.T, data []byte) (purls []string) {
	t.Helper()
	var doc spdxDocument
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&doc); err != nil {
		t.Fatal(err)
	}
	if doc.SPDXVersion != "SPDX-2.3" || doc.DataLicense != "CC0-1.0" || doc.DocumentNamespace == "" || doc.CreationInfo.Created != "1970-01-01T00:00:00Z" {
		t.Errorf("document: %+v", doc)
	}
	ids, related := map[string]bool{doc.SPDXID: true}, map[string]bool{}
	for _, p := range doc.Packages {
		if !validSPDXID.MatchString(p.SPDXID) || ids[p.SPDXID] {
			t.Errorf("SPDXID %q is invalid or not unique", p.SPDXID)
		}
		ids[p.SPDXID] = true
		for _, r := range p.ExternalRefs {
			purls = append(purls, r.Locator)
		}
	}
	for _, r := range doc.Relationships {
		if !ids[r.Element] || !ids[r.Related] {
			t.Errorf("relationship %+v of what is not there", r)
		}
		related[r.Related] = true
	}
	for id := range ids {
		if id != doc.SPDXID && !related[id] {
			t.Errorf("nothing relates to %s", id)
		}
	}
	return purls
}

// Images and their SBOMs are pushed to a registry, with and without OCI's API for referrers.
func TestPush(t *testing.T) {
	spec, out := writeSmall(t), t.TempDir()
	mustBuild(t, out, spec)
	for _, referrers := range []bool{true, false} {
		t.Run(fmt.Sprintf("referrers=%v", referrers), func(t *testing.T) {
			t.Setenv("DOCKER_CONFIG", t.TempDir())
			s := httptest.NewServer(registry.New(registry.WithReferrersSupport(referrers), registry.Logger(log.New(io.Discard, "", 0))))
			defer s.Close()
			host := strings.TrimPrefix(s.URL, "http://")
			var printed bytes.Buffer
			err := push(t.Context(), []string{"-out", out, "-registry", host + "/team", "-tag", "v9", "small"}, &progress{w: &printed})
			if err != nil {
				t.Fatal(err)
			}
			tag, err := name.NewTag(host + "/team/small:v9")
			if err != nil {
				t.Fatal(err)
			}
			index, err := remote.Index(tag)
			if err != nil {
				t.Fatal(err)
			}
			if err := validate.Index(index); err != nil {
				t.Error(err)
			}
			if digest, err := index.Digest(); err != nil || !strings.Contains(printed.String(), digest.String()) {
				t.Errorf("pushed %s %v, printed %s", digest, err, &printed)
			}
			checkReferrers(t, tag, index)
		})
	}
}

func checkReferrers(t *testing.T, tag name.Tag, index v1.ImageIndex) {
	t.Helper()
	m, err := index.IndexManifest()
	if err != nil || len(m.Manifests) != 2 {
		t.Fatalf("%v: %+v", err, m)
	}
	for _, d := range m.Manifests {
		list, err := remote.Referrers(tag.Context().Digest(d.Digest.String()))
		if err != nil {
			t.Fatal(err)
		}
		found, err := list.IndexManifest()
		if err != nil || len(found.Manifests) != 1 {
			t.Fatalf("referrers of %s: %v: %+v", d.Platform, err, found)
		}
		artifact, err := remote.Image(tag.Context().Digest(found.Manifests[0].Digest.String()))
		if err != nil {
			t.Fatal(err)
		}
		if m, err := artifact.Manifest(); err != nil || m.ArtifactType != mediaTypeSPDX || m.Subject == nil || m.Subject.Digest != d.Digest {
			t.Errorf("referrer of %s: %v: %+v", d.Platform, err, m)
		}
		layers, err := artifact.Layers()
		if err != nil || len(layers) != 1 {
			t.Fatalf("%v: %d layers", err, len(layers))
		}
		r, err := layers[0].Compressed()
		if err != nil {
			t.Fatal(err)
		}
		data, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		checkSPDX(t, data)
	}
}

func TestPushErrors(t *testing.T) {
	out := t.TempDir()
	for want, args := range map[string][]string{
		"-registry is missing":             {"-out", out},
		"is the name for images that are":  {"-out", out, "-registry", "localhost/ironlb"},
		"no OCI layout in":                 {"-out", out, "-registry", "registry.example.test/a"},
		"flag provided but not defined: -": {"-colour"},
	} {
		if err := push(t.Context(), args, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("push %v: %v, want %q", args, err, want)
		}
	}
}

func TestBuildErrors(t *testing.T) {
	spec := writeSmall(t)
	broken := write(t, filepath.Join(t.TempDir(), "broken.yaml"), strings.Replace(smallSpec, "entrypoint: [small]", "entrypoint: [other]", 1))
	write(t, filepath.Join(filepath.Dir(broken), "go.mod"), "module example.test/small\n\ngo 1.26.0\n")
	write(t, filepath.Join(filepath.Dir(broken), "main.go"), "package main\n\nfunc main() { undefined() }\n")
	for want, args := range map[string][]string{
		"no spec: name at least one":              nil,
		"read spec: open missing.yaml":            {"missing.yaml"},
		"both are of image small":                 {spec, spec},
		"belongs to a public hub":                 {"-ref", "small=small:1", spec},
		"write NAME=REFERENCE":                    {"-ref", "small", spec},
		"-ref other=...: no spec has this name":   {"-ref", "other=example.test/o:1", spec},
		"-platform linux/s390x: the spec has":     {"-platform", "linux/s390x", spec},
		"undefined: undefined":                    {broken},
		"image small: reference \"example.test/S": {"-registry", "example.test/S", spec},
	} {
		if _, err := buildInto(t, t.TempDir(), t.TempDir(), args...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("build %v: %v, want %q", args, err, want)
		}
	}
	t.Setenv("SOURCE_DATE_EPOCH", "today")
	if _, err := buildInto(t, t.TempDir(), t.TempDir(), spec); err == nil || !strings.Contains(err.Error(), "seconds since 1970") {
		t.Errorf("SOURCE_DATE_EPOCH=today: %v", err)
	}
}

func TestCanceled(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	err := build(ctx, []string{"-cache", t.TempDir(), "-out", t.TempDir(), writeSmall(t)}, nil)
	if !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
}
