package main

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/secure-systems-lab/go-securesystemslib/encrypted"
)

// The formats of cosign: https://github.com/sigstore/cosign/blob/main/specs/SIGNATURE_SPEC.md
const (
	mediaTypeSimpleSigning = "application/vnd.dev.cosign.simplesigning.v1+json"
	annotationSignature    = "dev.cosignproject.cosign/signature"
)

// signer signs with ECDSA on P-256 over SHA-256, as `cosign sign-blob --key` does.
type signer struct{ key *ecdsa.PrivateKey }

// readKey reads a private key: one of `cosign generate-key-pair`, which the password decrypts, or one of openssl in PKCS #8
// or SEC 1.
func readKey(file, password string) (*signer, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("read the key: %w", err)
	}
	key, err := parseKey(data, password)
	if err != nil {
		return nil, fmt.Errorf("key %s: %w", file, err)
	}
	return &signer{key}, nil
}

func parseKey(data []byte, password string) (*ecdsa.PrivateKey, error) {
	var block *pem.Block
	for block, data = pem.Decode(data); block != nil && block.Type == "EC PARAMETERS"; {
		block, data = pem.Decode(data)
	}
	if block == nil {
		return nil, errors.New("is not in PEM: make one with cosign generate-key-pair")
	}
	der := block.Bytes
	switch block.Type {
	case "EC PRIVATE KEY":
		key, err := x509.ParseECPrivateKey(der)
		return onP256(key, err)
	case "PRIVATE KEY":
	case "ENCRYPTED SIGSTORE PRIVATE KEY", "ENCRYPTED COSIGN PRIVATE KEY":
		if password == "" {
			return nil, errors.New("is encrypted, and there is no password: set COSIGN_PASSWORD")
		}
		var err error
		if der, err = encrypted.Decrypt(der, []byte(password)); err != nil {
			return nil, fmt.Errorf("decrypt with COSIGN_PASSWORD: %w", err)
		}
	default:
		return nil, fmt.Errorf("has a PEM block %q: give a private key of cosign generate-key-pair, or in PKCS #8 without a password", block.Type)
	}
	key, err := x509.ParsePKCS8PrivateKey(der)
	return onP256(key, err)
}

func onP256(key crypto.PrivateKey, err error) (*ecdsa.PrivateKey, error) {
	if err != nil {
		return nil, err
	}
	if k, ok := key.(*ecdsa.PrivateKey); ok && k.Curve == elliptic.P256() {
		return k, nil
	}
	return nil, errors.New("is not of ECDSA on P-256, which is what cosign generate-key-pair makes")
}

// sign returns the signature in ASN.1. It is deterministic (RFC 6979), so two releases with one key have the same signatures.
func (s *signer) sign(data []byte) ([]byte, error) {
	sum := sha256.Sum256(data)
	return s.key.Sign(nil, sum[:], crypto.SHA256)
}

// public returns the public key as cosign.pub has it.
func (s *signer) public() ([]byte, error) {
	der, err := x509.MarshalPKIXPublicKey(s.key.Public())
	return pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}), err
}

// pushed is a manifest that is pushed under a name, or as a part of an index with that name.
type pushed struct {
	repository string
	digest     v1.Hash
}

// manifestsIn lists the images of a layout, their platforms, and the chart.
func manifestsIn(p layout.Path) ([]pushed, error) {
	root, err := p.ImageIndex()
	if err != nil {
		return nil, err
	}
	list, err := root.IndexManifest()
	if err != nil {
		return nil, err
	}
	var all []pushed
	for _, d := range list.Manifests {
		repository := strings.TrimSuffix(d.Annotations[annotationRefName], ":"+tagOf(d.Annotations[annotationRefName]))
		if repository == "" {
			continue // an SBOM, whose digest is in the checksums
		}
		all = append(all, pushed{repository, d.Digest})
		if !d.MediaType.IsIndex() {
			continue
		}
		index, err := root.ImageIndex(d.Digest)
		if err != nil {
			return nil, err
		}
		platforms, err := index.IndexManifest()
		if err != nil {
			return nil, err
		}
		for _, m := range platforms.Manifests {
			all = append(all, pushed{repository, m.Digest})
		}
	}
	return all, nil
}

// simpleSigning is what the signature of an image signs.
type simpleSigning struct {
	Critical struct {
		Identity struct {
			DockerReference string `json:"docker-reference"`
		} `json:"identity"`
		Image struct {
			DockerManifestDigest v1.Hash `json:"docker-manifest-digest"`
		} `json:"image"`
		Type string `json:"type"`
	} `json:"critical"`
	Optional map[string]string `json:"optional"`
}

// signImages writes the signatures of manifests into an OCI layout of their own, each with the tag under which cosign looks
// for it in the registry. In the layout of the images they would change its checksums.
func (r *releaser) signImages(all []pushed) error {
	p, err := layout.Write(filepath.Join(r.out, signaturesDir), empty.Index)
	if err != nil {
		return err
	}
	for _, m := range all {
		var s simpleSigning
		s.Critical.Identity.DockerReference, s.Critical.Image.DockerManifestDigest = m.repository, m.digest
		s.Critical.Type = "cosign container image signature"
		payload, err := json.Marshal(s)
		if err != nil {
			return err
		}
		signature, err := r.key.sign(payload)
		if err != nil {
			return err
		}
		img, err := mutate.Append(mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON), mutate.Addendum{
			Layer:       static.NewLayer(payload, mediaTypeSimpleSigning),
			Annotations: map[string]string{annotationSignature: base64.StdEncoding.EncodeToString(signature)},
		})
		if err != nil {
			return err
		}
		ref := m.repository + ":" + m.digest.Algorithm + "-" + m.digest.Hex + ".sig"
		if err := p.AppendImage(img, layout.WithAnnotations(map[string]string{annotationRefName: ref})); err != nil {
			return err
		}
	}
	return nil
}
