package main

import (
	"context"
	"encoding/base64"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/google/go-containerregistry/pkg/v1/layout"
	"sigs.k8s.io/yaml"
)

// Release is what a release publishes beside the images, as a YAML file describes it. Paths are relative to the file.
type Release struct {
	Source    string   `json:"source"`    // address of the repository
	License   string   `json:"license"`   // file
	Chart     string   `json:"chart"`     // folder of the Helm chart
	Manifests []string `json:"manifests"` // files rendered from the chart
	Plugin    Plugin   `json:"plugin"`

	file string
}

// Files of a release that have fixed names. The signature and what follows it are made of SHA256SUMS.
const (
	crdsFile        = "crds.yaml"
	noticesFile     = "THIRD-PARTY-NOTICES.txt"
	artifactHubFile = "artifacthub-repo.yml"
	provenanceFile  = "provenance.intoto.json"
	sumsFile        = "SHA256SUMS"
	signatureFile   = "SHA256SUMS.sig"
	publicKeyFile   = "cosign.pub"
	signaturesDir   = "signatures"
)

var (
	// The tag of an image has no +, and Helm and Krew need semantic versions.
	validVersion = regexp.MustCompile(`^v(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)(-[0-9A-Za-z-]+(\.[0-9A-Za-z-]+)*)?$`)
	validID      = regexp.MustCompile(`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)
	fullCommit   = regexp.MustCompile(`^[0-9a-f]{40}$`)
)

// releaser makes a release. Its builder writes into the folder of the release.
type releaser struct {
	*builder
	*Release
	url         string // of the folder from which users download
	builtBy     string // URI of the builder
	artifactHub string // ID of the chart's repository on Artifact Hub
	key         *signer
}

func readRelease(file string) (*Release, error) {
	raw, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("read what to release: %w", err)
	}
	r := &Release{file: file}
	if err := yaml.UnmarshalStrict(raw, r); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	if err := r.validate(); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return r, nil
}

func (r *Release) validate() error {
	switch {
	case !strings.HasPrefix(r.Source, "https://"):
		return fmt.Errorf("source: %q: write the address of the repository, with https://", r.Source)
	case r.License == "":
		return errors.New("license: missing: write the path of the file with the license")
	case r.Chart == "":
		return errors.New("chart: missing: write the path of the chart's folder")
	case len(r.Manifests) == 0:
		return errors.New("manifests: missing: write the paths of the manifests")
	}
	if err := r.Plugin.validate(); err != nil {
		return fmt.Errorf("plugin.%w", err)
	}
	return nil
}

// relative returns a path of the file as seen from the working directory.
func (r *Release) relative(p string) string { return (&Spec{file: r.file}).relative(p) }

// release writes everything that is published into a folder, and replaces the release that is in it.
func release(ctx context.Context, args []string, password string, log *progress) error {
	flags := flag.NewFlagSet("release", flag.ContinueOnError)
	var (
		file    = flags.String("release", "deploy/images/release.yaml", "`file` with what to release beside the images")
		keyFile = flags.String("key", "", "`file` with a private key of cosign or openssl; COSIGN_PASSWORD decrypts it (default: not signed)")
		url     = flags.String("url", "", "`URL` of the folder from which users download, for Krew (default: the release of the tag on GitHub)")
		builtBy = flags.String("builder", "", "`URI` of the builder, for the provenance (default: RELEASING.md at the tag)")
		id      = flags.String("artifacthub-id", "", "`ID` of the chart's repository on Artifact Hub (default: none)")
	)
	b, specs, err := newBuilder(flags, args, log)
	if err != nil {
		return err
	}
	r := &releaser{builder: b, url: strings.TrimRight(*url, "/"), builtBy: *builtBy, artifactHub: *id}
	if r.Release, err = readRelease(*file); err != nil {
		return err
	}
	switch {
	case !validVersion.MatchString(b.tag):
		return fmt.Errorf("-tag %q is no version: write it like v0.1.0 or v0.1.0-rc.1", b.tag)
	case !fullCommit.MatchString(b.commit):
		return fmt.Errorf("-commit %s: a release is built from a commit: commit the changes, or write the full hash", b.commit)
	case *id != "" && !validID.MatchString(*id):
		return fmt.Errorf("-artifacthub-id %s: write the ID that Artifact Hub shows for the repository, a UUID", *id)
	case len(b.platforms) > 0 || len(b.refs) > 0 || !b.layout:
		return errors.New("-platform, -ref and -layout: a release has all platforms, names and layouts: remove them")
	}
	if *keyFile != "" {
		if r.key, err = readKey(*keyFile, password); err != nil {
			return err
		}
	}
	if r.url == "" {
		r.url = r.Source + "/releases/download/" + b.tag
	}
	if r.builtBy == "" {
		r.builtBy = r.Source + "/blob/" + b.tag + "/RELEASING.md#builder"
	}
	return r.into(ctx, specs, b.out)
}

// into makes the release in a new folder, which then takes the place of out.
func (r *releaser) into(ctx context.Context, specs []*Spec, out string) error {
	switch _, err := os.Stat(filepath.Join(out, sumsFile)); {
	case errors.Is(err, fs.ErrNotExist):
		if files, _ := os.ReadDir(out); len(files) > 0 {
			return fmt.Errorf("-out %s has files and no %s, so it is no release that can be replaced: name another folder", out, sumsFile)
		}
	case err != nil:
		return err
	}
	if err := os.MkdirAll(filepath.Dir(out), 0o755); err != nil {
		return fmt.Errorf("make the folder for the release: %w", err)
	}
	tmp, err := os.MkdirTemp(filepath.Dir(out), ".release-*")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	r.out = filepath.Join(tmp, "release")
	if err := r.write(ctx, specs); err != nil {
		return err
	}
	if err := os.RemoveAll(out); err != nil {
		return err
	}
	if err := os.Rename(r.out, out); err != nil {
		return err
	}
	r.log.printf("release %s is in %s", r.tag, out)
	return nil
}

// write writes the release into r.out: images, what is made from them and from the sources, provenance, checksums, and
// last the signatures. So the checksums are the same with and without a key.
func (r *releaser) write(ctx context.Context, specs []*Spec) error {
	if err := r.all(ctx, specs); err != nil {
		return err
	}
	kept, err := filepath.Glob(filepath.Join(r.out, ".*")) // lock and states of the builder
	if err != nil {
		return err
	}
	for _, f := range kept {
		if err := os.Remove(f); err != nil {
			return err
		}
	}
	images, err := layout.FromPath(r.layoutDir())
	if err != nil {
		return err
	}
	if err := r.charts(images); err != nil {
		return fmt.Errorf("chart: %w", err)
	}
	plugins, err := r.plugins(ctx)
	if err != nil {
		return fmt.Errorf("plugin: %w", err)
	}
	all := append([]parts{plugins}, r.made...)
	if err := writeFile(filepath.Join(r.out, noticesFile), []byte(union(all).copyright())); err != nil {
		return err
	}
	manifests, err := manifestsIn(images)
	if err != nil {
		return err
	}
	if err := r.provenance(all, manifests); err != nil {
		return fmt.Errorf("provenance: %w", err)
	}
	sums, err := r.sums()
	if err != nil {
		return fmt.Errorf("checksums: %w", err)
	}
	if r.key == nil {
		r.log.printf("NOT SIGNED: no key was given: pass -key FILE (make: KEY=FILE)")
		return nil
	}
	if err := r.sign(sums, manifests); err != nil {
		return fmt.Errorf("sign: %w", err)
	}
	return nil
}

// union returns the modules of several programs, for their notices.
func union(all []parts) parts {
	out := parts{licenses: map[string]licensed{}}
	for _, p := range all {
		maps.Copy(out.licenses, p.licenses)
		out.notices = append(out.notices, p.notices...)
	}
	slices.SortFunc(out.notices, compareModules)
	out.notices = slices.Compact(out.notices)
	return out
}

// sums writes the checksums of all files, as sha256sum does, and returns them.
func (r *releaser) sums() ([]byte, error) {
	all, err := hashes(r.out)
	if err != nil {
		return nil, err
	}
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(all)) {
		fmt.Fprintf(&b, "%s  %s\n", all[name], filepath.ToSlash(name))
	}
	return []byte(b.String()), writeFile(filepath.Join(r.out, sumsFile), []byte(b.String()))
}

// sign signs the checksums and each manifest that is pushed, and writes the public key.
func (r *releaser) sign(sums []byte, manifests []pushed) error {
	public, err := r.key.public()
	if err != nil {
		return err
	}
	signature, err := r.key.sign(sums)
	if err != nil {
		return err
	}
	for name, data := range map[string][]byte{publicKeyFile: public, signatureFile: []byte(base64.StdEncoding.EncodeToString(signature))} {
		if err := writeFile(filepath.Join(r.out, name), data); err != nil {
			return err
		}
	}
	return r.signImages(manifests)
}
