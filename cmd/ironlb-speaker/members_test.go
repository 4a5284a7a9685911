package main

import (
	"encoding/pem"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"k8s.io/client-go/rest"

	"github.com/ironlb/ironlb/speaker/member"
)

// The default of failover.cluster distinguishes clusters by their certificate authority, in any order of a bundle.
func TestCluster(t *testing.T) {
	file := filepath.Join(t.TempDir(), "ca.crt")
	certificate := func(text string) []byte {
		return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte(text)})
	}
	one, two := member.AuthorityKey([]byte("one")), member.AuthorityKey([]byte("two"))
	config := &rest.Config{TLSClientConfig: rest.TLSClientConfig{CAFile: file}}
	for _, c := range []struct {
		name string
		file []byte
		want []uint64
	}{
		{"one", certificate("one"), []uint64{one}},
		{"a bundle with one twice", slices.Concat(certificate("one"), certificate("two"), certificate("one")),
			[]uint64{one, two}},
		{"nothing of use", []byte("none"), nil},
	} {
		if err := os.WriteFile(file, c.file, 0o600); err != nil {
			t.Fatal(err)
		}
		name, got, err := failover{}.cluster(config)
		if err != nil || name != "ironlb" || !slices.Equal(got, c.want) {
			t.Errorf("%s: %q, %v, %v", c.name, name, got, err)
		}
	}
	if one == two {
		t.Error("two authorities are one")
	}
	if name, got, err := (failover{Cluster: "east"}).cluster(config); name != "east" || got != nil || err != nil {
		t.Errorf("a name that was given: %q, %v, %v", name, got, err)
	}
	missing := &rest.Config{TLSClientConfig: rest.TLSClientConfig{CAFile: file + "-none"}}
	if _, _, err := (failover{}).cluster(missing); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a file that is missing: %v", err)
	}
}
