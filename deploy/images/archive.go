package main

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// Annotations that hold a reference. Containerd reads the first one, other programs the second.
const (
	annotationName    = "io.containerd.image.name"
	annotationRefName = "org.opencontainers.image.ref.name"
)

// writeArchive writes an image as one file that is both an OCI layout and a docker archive: `ctr image import` reads
// index.json, `docker load` manifest.json.
func writeArchive(img *image, file string, when time.Time) error {
	tmp, err := os.CreateTemp(filepath.Dir(file), ".tmp-*")
	if err != nil {
		return fmt.Errorf("write %s: %w", file, err)
	}
	err = errors.Join(archiveTo(tmp, img, when), tmp.Chmod(0o644), tmp.Close())
	if err == nil {
		err = os.Rename(tmp.Name(), file)
	}
	if err != nil {
		_ = os.Remove(tmp.Name())
		return fmt.Errorf("write %s: %w", file, err)
	}
	return nil
}

type dockerManifest struct {
	Config   string
	RepoTags []string
	Layers   []string
}

func archiveTo(w io.Writer, img *image, when time.Time) error {
	tw := tar.NewWriter(w)
	put := func(name string, size int64, r io.Reader) error {
		h := &tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: size, ModTime: when, Format: tar.FormatPAX}
		if err := tw.WriteHeader(h); err != nil {
			return err
		}
		_, err := io.Copy(tw, r)
		return err
	}
	bytesOf := func(name string, data []byte) error { return put(name, int64(len(data)), bytes.NewReader(data)) }
	blob := func(h v1.Hash) string { return "blobs/" + h.Algorithm + "/" + h.Hex }

	manifest, err := img.RawManifest()
	if err != nil {
		return err
	}
	config, err := img.RawConfigFile()
	if err != nil {
		return err
	}
	parsed, err := img.Manifest()
	if err != nil {
		return err
	}
	layers, err := img.Layers()
	if err != nil {
		return err
	}
	docker := dockerManifest{Config: blob(parsed.Config.Digest), RepoTags: []string{img.reference}}
	if err := bytesOf("oci-layout", []byte(`{"imageLayoutVersion":"1.0.0"}`)); err != nil {
		return err
	}
	written := map[v1.Hash]bool{}
	for i, l := range layers {
		digest := parsed.Layers[i].Digest
		docker.Layers = append(docker.Layers, blob(digest))
		if written[digest] {
			continue
		}
		written[digest] = true
		r, err := l.Compressed()
		if err != nil {
			return err
		}
		err = put(blob(digest), parsed.Layers[i].Size, r)
		r.Close()
		if err != nil {
			return err
		}
	}
	if err := bytesOf(blob(parsed.Config.Digest), config); err != nil {
		return err
	}
	if err := bytesOf(blob(img.digest), manifest); err != nil {
		return err
	}
	desc, err := img.descriptor()
	if err != nil {
		return err
	}
	desc.Annotations = map[string]string{annotationName: img.reference, annotationRefName: img.reference}
	index, err := json.Marshal(v1.IndexManifest{SchemaVersion: 2, MediaType: types.OCIImageIndex, Manifests: []v1.Descriptor{desc}})
	if err != nil {
		return err
	}
	if err := bytesOf("index.json", index); err != nil {
		return err
	}
	list, err := json.Marshal([]dockerManifest{docker})
	if err != nil {
		return err
	}
	if err := bytesOf("manifest.json", list); err != nil {
		return err
	}
	return tw.Close()
}

// descriptor describes the image's manifest, with its platform.
func (img *image) descriptor() (v1.Descriptor, error) {
	size, err := img.Size()
	if err != nil {
		return v1.Descriptor{}, err
	}
	platform, err := v1.ParsePlatform(img.platform)
	return v1.Descriptor{MediaType: types.OCIManifestSchema1, Digest: img.digest, Size: size, Platform: platform}, err
}
