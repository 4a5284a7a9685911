package main

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"maps"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/validate"
	"github.com/secure-systems-lab/go-securesystemslib/encrypted"
	"sigs.k8s.io/yaml"
)

// smallRelease is a release of the small image with a chart, a manifest, and a plugin for two platforms.
const smallRelease = `
source: https://example.test/small
license: LICENSE
chart: chart
manifests: [all.yaml]
plugin:
  name: small
  shortDescription: Print a line
  description: Prints a line.
  program: {module: ., package: ., path: /kubectl-small, ldflags: -s -w}
  platforms: [linux/amd64, windows/amd64]
`

const commit = "0123456789012345678901234567890123456789"

// writeRelease writes the small release's files beside its spec, and returns the arguments of `images release`.
func writeRelease(t *testing.T) []string {
	t.Helper()
	spec := writeSmall(t)
	dir := filepath.Dir(spec)
	for file, content := range map[string]string{
		"LICENSE": "the license\n",
		"all.yaml": "# kubectl apply -f deploy/all.yaml, images localhost/small/...\nkind: Deployment\nmetadata:\n  labels:\n" +
			"    app.kubernetes.io/version: \"v0.0.1\"\nspec:\n  image: localhost/small/small:v0.0.1\n",
		"chart/Chart.yaml":        "apiVersion: v2\nname: tiny\ndescription: a chart\nversion: 0.0.1\nappVersion: v0.0.1\n",
		"chart/values.yaml":       "image:\n  registry: localhost/small\n",
		"chart/README.md":         "| `image.registry` | `localhost/small` |\n",
		"chart/README.md.tmpl":    "a template\n",
		"chart/.helmignore":       "# no templates\n*.tmpl\n",
		"chart/crds/a.yaml":       "---\nkind: CustomResourceDefinition # a\n",
		"chart/crds/b.yaml":       "---\nkind: CustomResourceDefinition # b\n",
		"chart/templates/one.txt": "template\n",
		"release.yaml":            smallRelease,
	} {
		write(t, filepath.Join(dir, file), content)
	}
	return []string{
		"-release", filepath.Join(dir, "release.yaml"), "-tag", "v1.2.3-rc.1", "-commit", commit, "-registry", "registry.example.test/team",
		"-artifacthub-id", "01234567-89ab-cdef-0123-456789abcdef", spec,
	}
}

func releaseInto(t *testing.T, out string, args ...string) error {
	t.Helper()
	return release(t.Context(), append([]string{"-out", out, "-cache", t.TempDir()}, args...), "", &progress{w: t.Output()})
}

func newKey(t *testing.T, curve elliptic.Curve) (*ecdsa.PrivateKey, []byte) {
	t.Helper()
	key, err := ecdsa.GenerateKey(curve, rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return key, der
}

func inPEM(kind string, der []byte) string {
	return string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}))
}

// TestRelease makes the small release three times: twice with a key, from two checkouts with caches of their own, and once
// without.
func TestRelease(t *testing.T) {
	key, der := newKey(t, elliptic.P256())
	keyFile := write(t, filepath.Join(t.TempDir(), "cosign.key"), inPEM("PRIVATE KEY", der))
	args := writeRelease(t)
	out := filepath.Join(t.TempDir(), "release")
	if err := releaseInto(t, out, append([]string{"-key", keyFile}, args...)...); err != nil {
		t.Fatal(err)
	}
	read := func(t *testing.T, file string) []byte {
		t.Helper()
		data, err := os.ReadFile(filepath.Join(out, file))
		if err != nil {
			t.Fatal(err)
		}
		return data
	}

	t.Run("names", func(t *testing.T) {
		files, err := os.ReadDir(out)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, f := range files {
			got = append(got, f.Name())
		}
		want := []string{
			"SHA256SUMS", "SHA256SUMS.sig", "THIRD-PARTY-NOTICES.txt", "all.yaml", "artifacthub-repo.yml", "cosign.pub", "crds.yaml",
			"kubectl-small-linux-amd64.spdx.json", "kubectl-small-linux-amd64.tar.gz", "kubectl-small-windows-amd64.spdx.json",
			"kubectl-small-windows-amd64.zip", "oci", "provenance.intoto.json", "signatures", "small-linux-amd64.spdx.json",
			"small-linux-amd64.tar", "small-linux-arm64.spdx.json", "small-linux-arm64.tar", "small.krew.yaml", "tiny-1.2.3-rc.1.tgz",
		}
		if !slices.Equal(got, want) {
			t.Errorf("files:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	})

	t.Run("reproducible", func(t *testing.T) {
		second, unsigned := t.TempDir(), filepath.Join(t.TempDir(), "release")
		if err := releaseInto(t, second, append([]string{"-key", keyFile}, writeRelease(t)...)...); err != nil {
			t.Fatal(err)
		}
		if n, err := compare(out, second); err != nil || n < 40 {
			t.Errorf("%d files compared: %v", n, err)
		}
		if err := releaseInto(t, unsigned, args...); err != nil {
			t.Fatal(err)
		}
		for _, signed := range []string{signatureFile, publicKeyFile, signaturesDir} {
			if err := os.RemoveAll(filepath.Join(second, signed)); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := compare(second, unsigned); err != nil {
			t.Errorf("without a key other files differ than the signatures: %v", err)
		}
		// A release replaces another one.
		if err := releaseInto(t, unsigned, append([]string{"-key", keyFile}, args...)...); err != nil {
			t.Fatal(err)
		}
		if _, err := compare(out, unsigned); err != nil {
			t.Error(err)
		}
	})

	t.Run("text", func(t *testing.T) {
		for file, want := range map[string]string{
			"all.yaml": "# kubectl apply -f all.yaml, images registry.example.test/team/...\nkind: Deployment\nmetadata:\n  labels:\n" +
				"    app.kubernetes.io/version: \"v1.2.3-rc.1\"\nspec:\n  image: registry.example.test/team/small:v1.2.3-rc.1\n",
			"crds.yaml": "---\nkind: CustomResourceDefinition # a\n---\nkind: CustomResourceDefinition # b\n",
		} {
			if got := string(read(t, file)); got != want {
				t.Errorf("%s:\n%s\nwant:\n%s", file, got, want)
			}
		}
		if got := string(read(t, artifactHubFile)); !strings.HasSuffix(got, "\nrepositoryID: 01234567-89ab-cdef-0123-456789abcdef\n") {
			t.Errorf("%s: %s", artifactHubFile, got)
		}
		if got := string(read(t, noticesFile)); !strings.Contains(got, "stdlib") || !strings.Contains(got, "the license") {
			t.Errorf("notices: %s", got)
		}
	})

	t.Run("chart", func(t *testing.T) {
		files := untar(t, read(t, "tiny-1.2.3-rc.1.tgz"))
		want := map[string]string{
			"tiny/Chart.yaml":  "apiVersion: v2\nname: tiny\ndescription: a chart\nversion: 1.2.3-rc.1\nappVersion: v1.2.3-rc.1\n",
			"tiny/values.yaml": "image:\n  registry: registry.example.test/team\n", "tiny/README.md": "| `image.registry` | `registry.example.test/team` |\n",
			"tiny/.helmignore": "# no templates\n*.tmpl\n", "tiny/crds/a.yaml": "---\nkind: CustomResourceDefinition # a\n",
			"tiny/crds/b.yaml": "---\nkind: CustomResourceDefinition # b\n", "tiny/templates/one.txt": "template\n", "tiny/LICENSE": "the license\n",
		}
		if !maps.Equal(files, want) {
			t.Errorf("chart: %q\nwant: %q", files, want)
		}
	})

	t.Run("plugin", func(t *testing.T) {
		files := untar(t, read(t, "kubectl-small-linux-amd64.tar.gz"))
		if files["LICENSE"] != "the license\n" || !strings.Contains(files[noticesFile], "stdlib") || !strings.HasPrefix(files["kubectl-small"], "\x7fELF") {
			t.Errorf("archive for linux: %q", slices.Collect(maps.Keys(files)))
		}
		data := read(t, "kubectl-small-windows-amd64.zip")
		z, err := zip.NewReader(bytes.NewReader(data), int64(len(data)))
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, f := range z.File {
			names = append(names, f.Name)
		}
		if !slices.Equal(names, []string{"LICENSE", noticesFile, "kubectl-small.exe"}) {
			t.Errorf("archive for windows: %q", names)
		}
		var krew krewManifest
		if err := yaml.UnmarshalStrict(read(t, "small.krew.yaml"), &krew); err != nil {
			t.Fatal(err)
		}
		if krew.Metadata["name"] != "small" || krew.Spec.Version != "v1.2.3-rc.1" || len(krew.Spec.Platforms) != 2 {
			t.Fatalf("%+v", krew)
		}
		last := krew.Spec.Platforms[1]
		if want := fmt.Sprintf("%x", sha256.Sum256(data)); last.SHA256 != want || last.Bin != "kubectl-small.exe" || last.Selector.MatchLabels["os"] != "windows" ||
			last.URI != "https://example.test/small/releases/download/v1.2.3-rc.1/kubectl-small-windows-amd64.zip" {
			t.Errorf("%+v, want sha256 %s", last, want)
		}
		purls := checkSPDX(t, read(t, "kubectl-small-windows-amd64.spdx.json"))
		if !slices.Contains(purls, "pkg:golang/example.test/small@v1.2.3-rc.1") {
			t.Errorf("SBOM: %q", purls)
		}
	})

	t.Run("provenance", func(t *testing.T) {
		var s statement
		dec := json.NewDecoder(bytes.NewReader(read(t, provenanceFile)))
		dec.DisallowUnknownFields()
		if err := dec.Decode(&s); err != nil {
			t.Fatal(err)
		}
		subjects := map[string]bool{}
		for _, subject := range s.Subject {
			subjects[subject.Name] = true
			if strings.Contains(subject.Name, "/") {
				read(t, "oci/blobs/sha256/"+subject.Digest["sha256"])
			} else if got := fmt.Sprintf("%x", sha256.Sum256(read(t, subject.Name))); got != subject.Digest["sha256"] {
				t.Errorf("%s has digest %s, the provenance %s", subject.Name, got, subject.Digest)
			}
		}
		for _, want := range []string{"all.yaml", "tiny-1.2.3-rc.1.tgz", "small.krew.yaml", "registry.example.test/team/small", "registry.example.test/team/tiny"} {
			if !subjects[want] {
				t.Errorf("the provenance lacks %s", want)
			}
		}
		if got := s.Predicate.BuildDefinition.ResolvedDependencies[0]; got.URI != "git+https://example.test/small@"+commit || got.Digest["gitCommit"] != commit {
			t.Errorf("source: %+v", got)
		}
		if s.Predicate.RunDetails.Builder.ID == "" || !strings.HasPrefix(s.Predicate.RunDetails.Builder.Version["go"], "go1.") {
			t.Errorf("builder: %+v", s.Predicate.RunDetails.Builder)
		}
	})

	t.Run("verify", func(t *testing.T) { verify(t, out) })
	t.Run("signatures", func(t *testing.T) { checkSignatures(t, out, &key.PublicKey) })
	t.Run("push", func(t *testing.T) { pushRelease(t, out) })
}

// verify runs the commands of the documentation: they succeed, and fail after a change of one byte.
func verify(t *testing.T, out string) {
	page, err := os.ReadFile("../../docs/tasks/verify-a-release.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(page), "## Verify files\n")
	_, rest, _ = strings.Cut(rest, "\n```\n")
	commands, _, found := strings.Cut(rest, "```\n")
	if !found || !strings.Contains(commands, "openssl dgst") || !strings.Contains(commands, "sha256sum") {
		t.Fatalf("docs/tasks/verify-a-release.md has no commands below Verify files: %q", commands)
	}
	try := func() (string, error) {
		cmd := exec.Command("bash", "-eu", "-c", commands)
		cmd.Dir = out
		printed, err := cmd.CombinedOutput()
		return string(printed), err
	}
	if printed, err := try(); err != nil || !strings.HasPrefix(printed, "Verified OK\n") {
		t.Fatalf("%v: %s", err, printed)
	}
	blobs, err := filepath.Glob(filepath.Join(out, "oci/blobs/sha256/*"))
	if err != nil || len(blobs) == 0 {
		t.Fatalf("%v: %q", err, blobs)
	}
	for _, file := range []string{sumsFile, signatureFile, publicKeyFile, provenanceFile, "all.yaml", "tiny-1.2.3-rc.1.tgz", "small-linux-arm64.tar", blobs[0]} {
		if !filepath.IsAbs(file) {
			file = filepath.Join(out, file)
		}
		good, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		bad := bytes.Clone(good)
		bad[len(bad)/2] ^= 1
		write(t, file, string(bad))
		if printed, err := try(); err == nil {
			t.Errorf("verified with a changed byte in %s: %s", file, printed)
		}
		write(t, file, string(good))
	}
	if err := os.Remove(filepath.Join(out, "all.yaml")); err != nil {
		t.Fatal(err)
	}
	if printed, err := try(); err != nil {
		t.Errorf("with one file that was not downloaded: %v: %s", err, printed)
	}
}

// checkSignatures verifies that each manifest that is pushed has a signature of its digest.
func checkSignatures(t *testing.T, out string, key *ecdsa.PublicKey) {
	images, err := layout.FromPath(filepath.Join(out, "oci"))
	if err != nil {
		t.Fatal(err)
	}
	wanted, err := manifestsIn(images)
	if err != nil || len(wanted) != 5 { // index, two platforms, chart, metadata of Artifact Hub
		t.Fatalf("%v: %+v", err, wanted)
	}
	root, err := layout.ImageIndexFromPath(filepath.Join(out, signaturesDir))
	if err != nil {
		t.Fatal(err)
	}
	if err := validate.Index(root, validate.Fast); err != nil {
		t.Error(err)
	}
	list, err := root.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	signed := map[string]bool{}
	for _, d := range list.Manifests {
		img, err := root.Image(d.Digest)
		if err != nil {
			t.Fatal(err)
		}
		m, err := img.Manifest()
		if err != nil || len(m.Layers) != 1 {
			t.Fatalf("%v: %+v", err, m)
		}
		payload, err := os.ReadFile(filepath.Join(out, signaturesDir, "blobs/sha256", m.Layers[0].Digest.Hex))
		if err != nil {
			t.Fatal(err)
		}
		signature, err := base64.StdEncoding.DecodeString(m.Layers[0].Annotations["dev.cosignproject.cosign/signature"])
		sum := sha256.Sum256(payload)
		if err != nil || !ecdsa.VerifyASN1(key, sum[:], signature) || m.Layers[0].MediaType != "application/vnd.dev.cosign.simplesigning.v1+json" {
			t.Errorf("%s: %v, layer %+v", payload, err, m.Layers[0])
		}
		signed[d.Annotations[annotationRefName]+" "+string(payload)] = true
	}
	for _, w := range wanted {
		want := w.repository + ":sha256-" + w.digest.Hex + `.sig {"critical":{"identity":{"docker-reference":"` + w.repository +
			`"},"image":{"docker-manifest-digest":"` + w.digest.String() + `"},"type":"cosign container image signature"},"optional":null}`
		if !signed[want] {
			t.Errorf("not signed: %s", want)
		}
	}
}

// pushRelease pushes images, chart and signatures to a registry, where each is found under its tag.
func pushRelease(t *testing.T, out string) {
	t.Setenv("DOCKER_CONFIG", t.TempDir())
	s := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	defer s.Close()
	to := strings.TrimPrefix(s.URL, "http://") + "/team"
	if err := push(t.Context(), []string{"-out", out, "-registry", to}, &progress{w: t.Output()}); err != nil {
		t.Fatal(err)
	}
	for ref, kind := range map[string]string{
		"/tiny:1.2.3-rc.1": "application/vnd.cncf.helm.config.v1+json", "/tiny:artifacthub.io": "application/vnd.cncf.artifacthub.config.v1+yaml",
		"/small:v1.2.3-rc.1": "",
	} {
		tag, err := name.NewTag(to + ref)
		if err != nil {
			t.Fatal(err)
		}
		d, err := remote.Get(tag)
		if err != nil {
			t.Fatal(err)
		}
		if kind != "" && !bytes.Contains(d.Manifest, []byte(`"config":{"mediaType":"`+kind+`"`)) {
			t.Errorf("%s: %s", ref, d.Manifest)
		}
		signature, err := remote.Image(tag.Context().Tag("sha256-" + d.Digest.Hex + ".sig"))
		if err != nil {
			t.Fatalf("signature of %s: %v", ref, err)
		}
		if err := validate.Image(signature, validate.Fast); err != nil {
			t.Error(err)
		}
	}
}

// untar returns the files of a compressed archive.
func untar(t *testing.T, data []byte) map[string]string {
	t.Helper()
	z, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	for tr := tar.NewReader(z); ; {
		h, err := tr.Next()
		if err == io.EOF {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(tr)
		if err != nil {
			t.Fatal(err)
		}
		if h.Typeflag == tar.TypeReg {
			files[h.Name] = string(content)
		}
	}
}

// Keys of cosign and of openssl are read; others, and wrong passwords, are refused.
func TestReadKey(t *testing.T) {
	key, der := newKey(t, elliptic.P256())
	sec1, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	sealed, err := encrypted.Encrypt(der, []byte("secret"))
	if err != nil {
		t.Fatal(err)
	}
	_, other := newKey(t, elliptic.P384())
	for _, c := range []struct{ name, text, password, want string }{
		{"PKCS #8", inPEM("PRIVATE KEY", der), "", ""},
		{"SEC 1", inPEM("EC PARAMETERS", []byte{1}) + inPEM("EC PRIVATE KEY", sec1), "", ""},
		{"cosign", inPEM("ENCRYPTED SIGSTORE PRIVATE KEY", sealed), "secret", ""},
		{"older cosign", inPEM("ENCRYPTED COSIGN PRIVATE KEY", sealed), "secret", ""},
		{"wrong password", inPEM("ENCRYPTED SIGSTORE PRIVATE KEY", sealed), "other", "decrypt with COSIGN_PASSWORD"},
		{"no password", inPEM("ENCRYPTED SIGSTORE PRIVATE KEY", sealed), "", "set COSIGN_PASSWORD"},
		{"curve", inPEM("PRIVATE KEY", other), "", "not of ECDSA on P-256"},
		{"public", inPEM("PUBLIC KEY", der), "", `PEM block "PUBLIC KEY"`},
		{"no PEM", "key", "", "not in PEM"},
	} {
		got, err := readKey(write(t, filepath.Join(t.TempDir(), "key"), c.text), c.password)
		if c.want == "" && (err != nil || !got.key.Equal(key)) {
			t.Errorf("%s: %v", c.name, err)
		}
		if c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
	}
}

func TestReleaseErrors(t *testing.T) {
	args := writeRelease(t)
	dir := filepath.Dir(args[1])
	used := t.TempDir()
	write(t, filepath.Join(used, "mine"), "x")
	edited := func(from, to string) []string {
		file := filepath.Join(t.TempDir(), "release.yaml")
		return []string{"-release", write(t, file, strings.Replace(smallRelease, from, to, 1))}
	}
	for want, more := range map[string][]string{
		`-tag "" is no version`:                             {"-tag", ""},
		`-tag "1.2.3" is no version`:                        {"-tag", "1.2.3"},
		"commit the changes":                                {"-commit", commit + "-dirty"},
		"a release is built from a commit":                  {"-commit", "unknown"},
		"a UUID":                                            {"-artifacthub-id", "7"},
		"a release has all platforms":                       {"-platform", "linux/amd64"},
		"no such file":                                      {"-key", "missing"},
		"has files and no SHA256SUMS":                       {"-out", used},
		"chart: missing: write the path":                    edited("chart: chart", ""),
		"plugin.platforms[0]":                               edited("linux/amd64", "linux"),
		`unknown field "image"`:                             edited("license:", "image: x\nlicense:"),
		"plugin.program: path: \"kubectl-small\": write an": edited("/kubectl", "kubectl"),
	} {
		spec := args[len(args)-1]
		all := append(append(slices.Clone(args[:len(args)-1]), more...), spec)
		if err := releaseInto(t, filepath.Join(t.TempDir(), "out"), all...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("release %q: %v, want %q", more, err, want)
		}
	}
	write(t, filepath.Join(dir, "chart", "values.yaml"), "image: {registry: localhost/small}\n")
	err := releaseInto(t, filepath.Join(t.TempDir(), "out"), args...)
	if want := `values.yaml: has "registry: localhost/small" 0 times`; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("a chart whose registry cannot be replaced: %v, want %q", err, want)
	}
}
