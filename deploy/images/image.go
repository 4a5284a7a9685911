package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// parts are the contents of one image on one platform, before assembly.
type parts struct {
	spec      *Spec
	reference string
	platform  string
	packages  []debPackage
	programs  []built
	licenses  map[string]licensed // of the modules of the programs, by path
	notices   []module            // those modules
	contents  map[string][]byte   // of files with From in the spec, by their path in the image
}

// image is one image on one platform.
type image struct {
	parts
	v1.Image
	digest    v1.Hash
	size      int64 // compressed, with manifest and configuration
	installed []installed
	elfFiles  int
}

// gather resolves packages and builds programs.
func (b *builder) gather(ctx context.Context, s *Spec, reference, platform string) (parts, error) {
	p := parts{spec: s, reference: reference, platform: platform, contents: map[string][]byte{}}
	var err error
	if s.Debian != nil {
		if p.packages, err = b.apt.resolve(ctx, s.Debian, platforms[platform].debian); err != nil {
			return p, err
		}
	}
	if p.programs, err = b.programs.build(ctx, s, stamp{tagOf(reference), b.commit}, platform); err != nil {
		return p, err
	}
	for _, f := range s.Files {
		if f.From == "" {
			continue
		}
		if p.contents[f.Path], err = s.readFrom(ctx, f); err != nil {
			return p, fmt.Errorf("file %s: %w", f.Path, err)
		}
	}
	return p, nil
}

// input identifies everything that an image depends on.
func (p parts) input(b *builder) string {
	h := sha256.New()
	fmt.Fprintf(h, "%s %s %s %s %d\n%s\n", b.tool, p.reference, b.commit, p.platform, b.when.Unix(), p.spec.raw)
	for _, d := range p.packages {
		fmt.Fprintf(h, "package %s %s %s %s\n", d.Name, d.Version, d.Arch, d.SHA256)
	}
	for _, program := range p.programs {
		fmt.Fprintf(h, "program %s %s\n", program.Path, program.sum)
	}
	for _, f := range slices.Sorted(maps.Keys(p.contents)) {
		fmt.Fprintf(h, "file %s %x\n", f, sha256.Sum256(p.contents[f]))
	}
	return hex.EncodeToString(h.Sum(nil))
}

// assemble writes the layers of an image into a folder and returns the image.
func (b *builder) assemble(ctx context.Context, p parts, dir string) (*image, error) {
	if err := p.license(ctx); err != nil {
		return nil, err
	}
	img := &image{parts: p}
	base := newTree(p.spec.Debian != nil)
	if p.spec.Debian != nil {
		var err error
		if img.installed, err = unpack(ctx, base, p.spec.Debian, p.packages); err != nil {
			return nil, err
		}
		base.merge()
	}
	full := base.clone()
	if err := p.files(full); err != nil {
		return nil, err
	}
	var err error
	if img.elfFiles, err = checkClosure(full, p.platform); err != nil {
		return nil, fmt.Errorf("files that cannot start or resolve:\n%w", err)
	}
	if err := p.spec.checkStart(full); err != nil {
		return nil, err
	}
	var layers []mutate.Addendum
	add := func(t *tree, by string) error {
		if len(t.entries) == 0 {
			return nil
		}
		l, err := newLayer(t, dir, b.when)
		if err != nil {
			return err
		}
		history := v1.History{Created: v1.Time{Time: b.when}, CreatedBy: by}
		layers = append(layers, mutate.Addendum{Layer: l, History: history, MediaType: types.OCILayer})
		return nil
	}
	if p.spec.Debian != nil {
		if err := add(base, "Debian "+p.spec.Debian.Release+": "+strings.Join(packageNames(p.packages), " ")); err != nil {
			return nil, err
		}
	}
	if err := add(full.without(base), "programs and files of "+p.spec.Name); err != nil {
		return nil, err
	}
	img.Image, err = mutate.Append(mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON), layers...)
	if err != nil {
		return nil, err
	}
	if img.Image, err = b.configure(img.Image, p); err != nil {
		return nil, err
	}
	if img.digest, err = img.Digest(); err != nil {
		return nil, err
	}
	img.size, err = sizeOf(img)
	return img, err
}

// checkStart verifies that the entrypoint is in the image.
func (s *Spec) checkStart(t *tree) error {
	program := s.Entrypoint[0]
	if path.IsAbs(program) {
		if !t.has(program) {
			return fmt.Errorf("entrypoint: %s is not in the image", program)
		}
		return nil
	}
	for dir := range strings.SplitSeq(s.Path, ":") {
		if t.has(path.Join(dir, program)) {
			return nil
		}
	}
	return fmt.Errorf("entrypoint: %s is in no folder of path, %s", program, s.Path)
}

func (b *builder) configure(img v1.Image, p parts) (v1.Image, error) {
	have, err := img.ConfigFile()
	if err != nil {
		return nil, err
	}
	cfg := have.DeepCopy()
	cfg.OS, cfg.Architecture, _ = strings.Cut(p.platform, "/")
	cfg.Created = v1.Time{Time: b.when}
	labels := map[string]string{
		"org.opencontainers.image.title":       p.spec.Name,
		"org.opencontainers.image.description": p.spec.Description,
	}
	if tag := tagOf(p.reference); tag != "" {
		labels["org.opencontainers.image.version"] = tag
	}
	if b.commit != unknownCommit {
		labels["org.opencontainers.image.revision"] = b.commit
	}
	maps.Copy(labels, p.spec.Labels)
	cfg.Config = v1.Config{
		User:       p.spec.User,
		Env:        append([]string{"PATH=" + p.spec.Path}, p.spec.Env...),
		Entrypoint: slices.Clone(p.spec.Entrypoint),
		Cmd:        slices.Clone(p.spec.Cmd),
		WorkingDir: "/",
		Labels:     labels,
	}
	return mutate.ConfigFile(img, cfg)
}

func tagOf(reference string) string {
	_, last, _ := strings.Cut(path.Base(reference), ":")
	return last
}

func packageNames(packages []debPackage) []string {
	var names []string
	for _, p := range packages {
		names = append(names, p.Name)
	}
	return names
}

func sizeOf(img v1.Image) (int64, error) {
	m, err := img.Manifest()
	if err != nil {
		return 0, err
	}
	size, err := img.Size()
	if err != nil {
		return 0, err
	}
	size += m.Config.Size
	for _, l := range m.Layers {
		size += l.Size
	}
	return size, nil
}
