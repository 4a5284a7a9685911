package main

import (
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash"
	"io"
	"os"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// layer is a compressed layer in a file. It is compressed once and written to several places.
type layer struct {
	file           string
	digest, diffID v1.Hash
	size           int64
}

func (l *layer) Digest() (v1.Hash, error)            { return l.digest, nil }
func (l *layer) DiffID() (v1.Hash, error)            { return l.diffID, nil }
func (l *layer) Size() (int64, error)                { return l.size, nil }
func (l *layer) MediaType() (types.MediaType, error) { return types.OCILayer, nil }
func (l *layer) Compressed() (io.ReadCloser, error)  { return os.Open(l.file) }

func (l *layer) Uncompressed() (io.ReadCloser, error) {
	f, err := os.Open(l.file)
	if err != nil {
		return nil, err
	}
	z, err := gzip.NewReader(f)
	if err != nil {
		f.Close()
		return nil, err
	}
	return struct {
		io.Reader
		io.Closer
	}{z, f}, nil
}

type counter struct {
	n int64
	h hash.Hash
}

func (c *counter) Write(p []byte) (int, error) {
	c.n += int64(len(p))
	return c.h.Write(p)
}

func (c *counter) hash() v1.Hash {
	return v1.Hash{Algorithm: "sha256", Hex: hex.EncodeToString(c.h.Sum(nil))}
}

// newLayer writes a tree as a layer into a folder.
func newLayer(t *tree, dir string, when time.Time) (*layer, error) {
	f, err := os.CreateTemp(dir, "layer-*.tar.gz")
	if err != nil {
		return nil, fmt.Errorf("write layer: %w", err)
	}
	defer f.Close()
	packed, plain := &counter{h: sha256.New()}, &counter{h: sha256.New()}
	z := gzip.NewWriter(io.MultiWriter(f, packed))
	if err := t.write(io.MultiWriter(z, plain), when); err != nil {
		return nil, fmt.Errorf("write layer: %w", err)
	}
	if err := z.Close(); err != nil {
		return nil, fmt.Errorf("write layer: %w", err)
	}
	return &layer{file: f.Name(), digest: packed.hash(), diffID: plain.hash(), size: packed.n}, f.Close()
}
