package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// layoutDir is the OCI layout with all images of an output folder.
func (b *builder) layoutDir() string { return filepath.Join(b.out, "oci") }

// inLayout reports whether the layout lists an index.
func (b *builder) inLayout(digest string) bool {
	p, err := layout.FromPath(b.layoutDir())
	if err != nil {
		return false
	}
	root, err := p.ImageIndex()
	if err != nil {
		return false
	}
	m, err := root.IndexManifest()
	if err != nil {
		return false
	}
	for _, d := range m.Manifests {
		if d.Digest.String() == digest {
			return true
		}
	}
	return false
}

// writeLayout puts a multi-platform image into the layout, with an SBOM for each platform, and replaces the image of
// the same name. It returns the digest of the image's index.
func (b *builder) writeLayout(ref string, images []*image) (string, error) {
	p, err := layout.FromPath(b.layoutDir())
	if errors.Is(err, fs.ErrNotExist) {
		p, err = layout.Write(b.layoutDir(), empty.Index)
	}
	if err != nil {
		return "", fmt.Errorf("OCI layout: %w", err)
	}
	named := func(d v1.Descriptor) bool {
		return d.Annotations[annotationRefName] == ref || d.Annotations[annotationSBOMOf] == ref
	}
	if err := p.RemoveDescriptors(named); err != nil {
		return "", fmt.Errorf("OCI layout: %w", err)
	}
	index := v1.ImageIndex(mutate.IndexMediaType(empty.Index, types.OCIImageIndex))
	for _, img := range images {
		desc, err := img.descriptor()
		if err != nil {
			return "", err
		}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: img.Image, Descriptor: desc})
	}
	annotations := map[string]string{annotationName: ref, annotationRefName: ref}
	if err := p.AppendIndex(index, layout.WithAnnotations(annotations)); err != nil {
		return "", fmt.Errorf("OCI layout: %w", err)
	}
	for _, img := range images {
		if err := b.attachSBOM(p, img); err != nil {
			return "", fmt.Errorf("SBOM of %s for %s: %w", ref, img.platform, err)
		}
	}
	if err := prune(p); err != nil {
		return "", fmt.Errorf("OCI layout: %w", err)
	}
	digest, err := index.Digest()
	return digest.String(), err
}

// blob is the content of a blob, and its media type.
type blob struct {
	kind types.MediaType
	data []byte
}

// write writes the blob into a layout and returns its descriptor.
func (b blob) write(p layout.Path) (v1.Descriptor, error) {
	digest, size, err := v1.SHA256(bytes.NewReader(b.data))
	if err != nil {
		return v1.Descriptor{}, err
	}
	return v1.Descriptor{MediaType: b.kind, Digest: digest, Size: size}, p.WriteBlob(digest, io.NopCloser(bytes.NewReader(b.data)))
}

// writeArtifact completes the manifest of an artifact that is no image, with a configuration and one blob, writes all
// three into a layout, and lists it there with annotations.
func writeArtifact(p layout.Path, m v1.Manifest, config, content blob, listed map[string]string) error {
	m.SchemaVersion, m.MediaType = 2, types.OCIManifestSchema1
	var err error
	if m.Config, err = config.write(p); err != nil {
		return err
	}
	layer, err := content.write(p)
	if err != nil {
		return err
	}
	m.Layers = []v1.Descriptor{layer}
	raw, err := json.Marshal(m)
	if err != nil {
		return err
	}
	d, err := blob{m.MediaType, raw}.write(p)
	if err != nil {
		return err
	}
	d.ArtifactType, d.Annotations = m.ArtifactType, listed
	return p.AppendDescriptor(d)
}

// prune removes blobs that no manifest of the layout refers to.
func prune(p layout.Path) error {
	used := map[v1.Hash]bool{}
	root, err := os.ReadFile(filepath.Join(string(p), "index.json"))
	if err != nil {
		return err
	}
	if err := mark(p, root, used); err != nil {
		return err
	}
	blobs, err := os.ReadDir(filepath.Join(string(p), "blobs", "sha256"))
	if err != nil {
		return err
	}
	for _, f := range blobs {
		if h := (v1.Hash{Algorithm: "sha256", Hex: f.Name()}); !used[h] {
			if err := os.Remove(filepath.Join(string(p), "blobs", "sha256", f.Name())); err != nil {
				return err
			}
		}
	}
	return nil
}

// mark records the blobs that a manifest or index refers to.
func mark(p layout.Path, manifest []byte, used map[v1.Hash]bool) error {
	var m struct {
		Config    *v1.Descriptor  `json:"config"`
		Layers    []v1.Descriptor `json:"layers"`
		Manifests []v1.Descriptor `json:"manifests"`
	}
	if err := json.Unmarshal(manifest, &m); err != nil {
		return err
	}
	if m.Config != nil {
		used[m.Config.Digest] = true
	}
	for _, l := range m.Layers {
		used[l.Digest] = true
	}
	for _, d := range m.Manifests {
		used[d.Digest] = true
		data, err := p.Bytes(d.Digest)
		if err != nil {
			return err
		}
		if err := mark(p, data, used); err != nil {
			return err
		}
	}
	return nil
}
