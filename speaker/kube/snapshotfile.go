package kube

import (
	"bufio"
	"cmp"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	kjson "sigs.k8s.io/json"

	"github.com/ironlb/ironlb/pools/v1alpha1"
)

// The file of a snapshot is JSON, one value per line, compressed by gzip: "zcat FILE | jq" prints it. The first line is
// the head, the others are the objects as in the API, kind by kind with the counts of the head. The checksum of gzip
// detects damage.

// snapshotFormat is the version of this file format and its semantics. A file of another version is not read.
const snapshotFormat = 3

const (
	// lineMost is more than the API server stores per object (etcd's --max-request-bytes is 1.5 MiB).
	lineMost = 4 << 20
	// snapshotMost limits the size that is read: about ten times that of 5,000 Services.
	snapshotMost = 256 << 20
)

// snapshotHead identifies the origin of a snapshot.
type snapshotHead struct {
	Format int    `json:"format"`
	Node   string `json:"node"`
	// Cluster identifies the cluster (clusterOf).
	Cluster string `json:"cluster"`
	// ServiceProxy is the option under which the objects were trimmed.
	ServiceProxy bool           `json:"serviceProxy"`
	At           time.Time      `json:"at"`
	Kinds        []snapshotKind `json:"kinds"`
}

type snapshotKind struct {
	Kind  string `json:"kind"`
	Count int    `json:"count"`
}

// Reasons why a file is not a snapshot of this node.
var (
	errDamaged = errors.New("it is damaged")
	errForeign = errors.New("it is another's")
)

// fits returns why the snapshot is not one for this process.
func (h snapshotHead) fits(want snapshotHead) error {
	switch {
	case h.Format != want.Format:
		return fmt.Errorf("%w: of format %d, this version reads %d", errForeign, h.Format, want.Format)
	case h.Node != want.Node:
		return fmt.Errorf("%w: of node %q, this is %q", errForeign, h.Node, want.Node)
	case h.Cluster != want.Cluster:
		return fmt.Errorf("%w: of a cluster with another certificate authority or API server", errForeign)
	case h.ServiceProxy != want.ServiceProxy:
		return fmt.Errorf("%w: written with serviceProxy: %t", errForeign, h.ServiceProxy)
	}
	return nil
}

// bare returns the part of a trimmed object that the View is built from. The holder of a VirtualIP is left out: it may
// be outdated, so the addresses are probed again before they are announced.
func bare(obj runtime.Object) runtime.Object {
	out := obj.DeepCopyObject()
	meta := out.(metav1.ObjectMetaAccessor).GetObjectMeta().(*metav1.ObjectMeta)
	*meta = metav1.ObjectMeta{Namespace: meta.Namespace, Name: meta.Name, Generation: meta.Generation, Labels: meta.Labels, Annotations: meta.Annotations,
		CreationTimestamp: meta.CreationTimestamp, DeletionTimestamp: meta.DeletionTimestamp}
	if vip, is := out.(*v1alpha1.VirtualIP); is {
		vip.Status = v1alpha1.VirtualIPStatus{}
	}
	return out
}

// encodeSnapshot writes a snapshot of these objects by kind, uncompressed.
func encodeSnapshot(to io.Writer, head snapshotHead, kinds []string, objects map[string][]any) error {
	head.Kinds = nil
	for _, kind := range kinds {
		head.Kinds = append(head.Kinds, snapshotKind{Kind: kind, Count: len(objects[kind])})
	}
	lines := json.NewEncoder(to)
	if err := lines.Encode(head); err != nil {
		return err
	}
	for _, kind := range kinds {
		for _, obj := range objects[kind] {
			if err := lines.Encode(bare(obj.(runtime.Object))); err != nil {
				return fmt.Errorf("write one of the %s: %w", kind, err)
			}
		}
	}
	return nil
}

// decodeSnapshot reads an uncompressed snapshot. It must contain exactly these watches and match want. It returns the
// parts of the View by kind.
func decodeSnapshot(from io.Reader, want snapshotHead, watches []watch) (head snapshotHead, parts map[string]map[ref]any, err error) {
	lines := bufio.NewScanner(from)
	lines.Buffer(nil, lineMost)
	if err := nextLine(lines, &head); err != nil {
		return head, nil, fmt.Errorf("read the head: %w", err)
	}
	if err := head.fits(want); err != nil {
		return head, nil, err
	}
	if len(head.Kinds) != len(watches) {
		return head, nil, fmt.Errorf("%w: it has %d kinds of objects, this version reads %d", errForeign, len(head.Kinds), len(watches))
	}
	parts = map[string]map[ref]any{}
	for i, w := range watches {
		if head.Kinds[i].Kind != w.kind || head.Kinds[i].Count < 0 {
			return head, nil, fmt.Errorf("%w: it has %d %q in place of %s", errForeign, head.Kinds[i].Count, head.Kinds[i].Kind, w.kind)
		}
		parts[w.kind] = map[ref]any{}
		for range head.Kinds[i].Count {
			obj := reflect.New(reflect.TypeOf(w.object).Elem()).Interface()
			if err := nextLine(lines, obj); err != nil {
				return head, nil, fmt.Errorf("read one of the %s: %w", w.kind, err)
			}
			if r, value := w.convert(obj); value != nil {
				parts[w.kind][r] = value
			}
		}
	}
	if lines.Scan() {
		return head, nil, fmt.Errorf("%w: there is more after its end", errDamaged)
	}
	if err := lines.Err(); err != nil {
		return head, nil, fmt.Errorf("%w: %w", errDamaged, err)
	}
	return head, parts, nil
}

// nextLine reads one value. It refuses unknown fields: they may have a meaning that must not be ignored.
func nextLine(lines *bufio.Scanner, to any) error {
	if !lines.Scan() {
		return fmt.Errorf("%w: %w", errDamaged, cmp.Or(lines.Err(), io.ErrUnexpectedEOF))
	}
	strict, err := kjson.UnmarshalStrict(lines.Bytes(), to)
	if err = errors.Join(append(strict, err)...); err != nil {
		return fmt.Errorf("%w, or another version's: %w", errDamaged, err)
	}
	return nil
}

// readSnapshot reads a file.
func readSnapshot(path string, want snapshotHead, watches []watch) (snapshotHead, map[string]map[ref]any, error) {
	file, err := os.Open(path)
	if err != nil {
		return snapshotHead{}, nil, err
	}
	defer file.Close()
	plain, err := gzip.NewReader(bufio.NewReader(file))
	if err != nil {
		return snapshotHead{}, nil, fmt.Errorf("%w: %w", errDamaged, err)
	}
	return decodeSnapshot(io.LimitReader(plain, snapshotMost), want, watches)
}

// writeSnapshot replaces a file atomically: a reader finds the old or the new one, also after a loss of power. Only the
// owner may read it: it shows what a cluster runs.
func writeSnapshot(path string, encode func(io.Writer) error) error {
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	next := path + ".new" // an unfinished one is overwritten
	file, err := os.OpenFile(next, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	err = compress(file, encode)
	if err == nil {
		err = file.Sync()
	}
	if err = errors.Join(err, file.Close()); err == nil {
		err = os.Rename(next, path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(next))
	}
	return syncDir(dir)
}

func compress(to io.Writer, encode func(io.Writer) error) error {
	z, err := gzip.NewWriterLevel(to, gzip.BestSpeed)
	if err != nil {
		return err
	}
	buffered := bufio.NewWriterSize(z, 64<<10)
	return errors.Join(encode(buffered), buffered.Flush(), z.Close())
}

// syncDir makes a rename durable.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
