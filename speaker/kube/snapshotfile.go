package kube

import (
	"bufio"
	"compress/gzip"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	kjson "sigs.k8s.io/json"

	"github.com/ironlb/ironlb/pools/v1alpha1"
)

// The file of a snapshot is compressed by gzip, whose checksum detects damage. Inside are records, each after its
// length as uvarint: first the head in JSON, then the objects, kind by kind with the counts of the head, and nothing
// after them. Objects of Kubernetes are in its protobuf, IronLB's in JSON.

// snapshotFormat is the version of this file format and its semantics. A file of another version is not read.
const snapshotFormat = 2

const (
	// recordMost is more than the API server stores per object (etcd's --max-request-bytes is 1.5 MiB).
	recordMost = 4 << 20
	// snapshotMost limits the size that is read: about twenty times that of 5,000 Services.
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

// protobuf is an object of Kubernetes.
type protobuf interface {
	Size() int
	MarshalToSizedBuffer([]byte) (int, error)
	Unmarshal([]byte) error
}

// bare returns the part of a trimmed object that the View is built from. The holder of a VirtualIP is left out: it may
// be outdated, so the addresses are probed again before they are announced.
func bare(obj any) any {
	switch o := obj.(type) {
	case *v1alpha1.VirtualIP:
		return &v1alpha1.VirtualIP{ObjectMeta: bareMeta(o.ObjectMeta), Spec: o.Spec}
	case *v1alpha1.L2Advertisement:
		return &v1alpha1.L2Advertisement{ObjectMeta: bareMeta(o.ObjectMeta), Spec: o.Spec}
	case *corev1.Service:
		out := *o
		out.ObjectMeta = bareMeta(o.ObjectMeta)
		return &out
	case *discoveryv1.EndpointSlice:
		out := *o
		out.ObjectMeta = bareMeta(o.ObjectMeta)
		return &out
	case metav1.ObjectMetaAccessor: // the others are few
		out := obj.(runtime.Object).DeepCopyObject()
		meta := out.(metav1.ObjectMetaAccessor).GetObjectMeta().(*metav1.ObjectMeta)
		*meta = bareMeta(*meta)
		return out
	}
	return obj
}

func bareMeta(m metav1.ObjectMeta) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: m.Namespace, Name: m.Name, Generation: m.Generation, Labels: m.Labels, Annotations: m.Annotations,
		CreationTimestamp: m.CreationTimestamp, DeletionTimestamp: m.DeletionTimestamp}
}

// recordWriter writes records; buf is reused.
type recordWriter struct {
	to  io.Writer
	buf []byte
}

func (w *recordWriter) write(data []byte) error {
	var length [binary.MaxVarintLen64]byte
	if _, err := w.to.Write(length[:binary.PutUvarint(length[:], uint64(len(data)))]); err != nil {
		return err
	}
	_, err := w.to.Write(data)
	return err
}

func (w *recordWriter) object(obj any) error {
	p, ok := obj.(protobuf)
	if !ok {
		data, err := json.Marshal(obj)
		if err != nil {
			return err
		}
		return w.write(data)
	}
	size := p.Size()
	if cap(w.buf) < size {
		w.buf = make([]byte, 2*size)
	}
	n, err := p.MarshalToSizedBuffer(w.buf[:size])
	if err != nil {
		return err
	}
	return w.write(w.buf[size-n : size])
}

// encodeSnapshot writes a snapshot of these objects by kind, uncompressed.
func encodeSnapshot(to io.Writer, head snapshotHead, kinds []string, objects map[string][]any) error {
	head.Kinds = nil
	for _, kind := range kinds {
		head.Kinds = append(head.Kinds, snapshotKind{Kind: kind, Count: len(objects[kind])})
	}
	w := recordWriter{to: to}
	data, err := json.Marshal(head)
	if err != nil {
		return err
	}
	if err := w.write(data); err != nil {
		return err
	}
	for _, kind := range kinds {
		for _, obj := range objects[kind] {
			if err := w.object(bare(obj)); err != nil {
				return fmt.Errorf("write one of the %s: %w", kind, err)
			}
		}
	}
	return nil
}

// decodeSnapshot reads an uncompressed snapshot. It must contain exactly these watches and match want. It returns the
// parts of the View by kind.
func decodeSnapshot(from *bufio.Reader, want snapshotHead, watches []watch) (snapshotHead, map[string]map[ref]any, error) {
	var head snapshotHead
	data, err := readRecord(from, nil)
	if err == nil {
		err = strictly(data, &head)
	}
	if err != nil {
		return head, nil, fmt.Errorf("read the head: %w", err)
	}
	if err := head.fits(want); err != nil {
		return head, nil, err
	}
	if len(head.Kinds) != len(watches) {
		return head, nil, fmt.Errorf("%w: it has %d kinds of objects, this version reads %d", errForeign, len(head.Kinds), len(watches))
	}
	parts := map[string]map[ref]any{}
	for i, w := range watches {
		if head.Kinds[i].Kind != w.kind || head.Kinds[i].Count < 0 {
			return head, nil, fmt.Errorf("%w: it has %d %q in place of %s", errForeign, head.Kinds[i].Count, head.Kinds[i].Kind, w.kind)
		}
		parts[w.kind] = map[ref]any{}
		for range head.Kinds[i].Count {
			if data, err = readRecord(from, data); err != nil {
				return head, nil, fmt.Errorf("read one of the %s: %w", w.kind, err)
			}
			obj := reflect.New(reflect.TypeOf(w.object).Elem()).Interface()
			if err := decodeObject(data, obj); err != nil {
				return head, nil, fmt.Errorf("read one of the %s: %w", w.kind, err)
			}
			if r, value := w.convert(obj); value != nil {
				parts[w.kind][r] = value
			}
		}
	}
	if _, err := from.ReadByte(); err != io.EOF {
		return head, nil, errors.Join(fmt.Errorf("%w: there is more after its end", errDamaged), err)
	}
	return head, parts, nil
}

func decodeObject(data []byte, obj any) error {
	if p, ok := obj.(protobuf); ok {
		if err := p.Unmarshal(data); err != nil {
			return fmt.Errorf("%w: %w", errDamaged, err)
		}
		return nil
	}
	return strictly(data, obj)
}

// strictly refuses unknown fields: they may have a meaning that must not be ignored.
func strictly(data []byte, to any) error {
	strict, err := kjson.UnmarshalStrict(data, to)
	if err = errors.Join(append(strict, err)...); err != nil {
		return fmt.Errorf("%w, or another version's: %w", errDamaged, err)
	}
	return nil
}

// readRecord reads one record into buf, if that is large enough.
func readRecord(from *bufio.Reader, buf []byte) ([]byte, error) {
	length, err := binary.ReadUvarint(from)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errDamaged, err)
	}
	if length > recordMost {
		return nil, fmt.Errorf("%w: a record of %d bytes", errDamaged, length)
	}
	if uint64(cap(buf)) < length {
		buf = make([]byte, length)
	}
	if _, err := io.ReadFull(from, buf[:length]); err != nil {
		return nil, fmt.Errorf("%w: %w", errDamaged, err)
	}
	return buf[:length], nil
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
	return decodeSnapshot(bufio.NewReader(io.LimitReader(plain, snapshotMost)), want, watches)
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
