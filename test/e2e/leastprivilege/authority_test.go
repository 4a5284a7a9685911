package leastprivilege

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"math/big"
	"os"
	"path/filepath"
	"time"

	"k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"
)

const clientName = "scraper"

// authority signs the client certificates that the API server accepts. Its fields are files.
type authority struct{ file, clientCert, clientKey string }

func newAuthority(dir string) (a authority, err error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return a, err
	}
	ca, err := cert.NewSelfSignedCACert(cert.Config{CommonName: "clients"}, key)
	if err != nil {
		return a, err
	}
	client, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return a, err
	}
	signed, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		Subject: pkix.Name{CommonName: clientName}, SerialNumber: big.NewInt(1), NotBefore: ca.NotBefore, NotAfter: time.Now().Add(24 * time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}, ca, client.Public(), key)
	if err != nil {
		return a, err
	}
	leaf, err := x509.ParseCertificate(signed)
	if err != nil {
		return a, err
	}
	a = authority{filepath.Join(dir, "ca.crt"), filepath.Join(dir, "client.crt"), filepath.Join(dir, "client.key")}
	certs := func(file string, c *x509.Certificate) error {
		text, err := cert.EncodeCertificates(c)
		return errors.Join(err, os.WriteFile(file, text, 0o600))
	}
	text, err := keyutil.MarshalPrivateKeyToPEM(client)
	return a, errors.Join(err, certs(a.file, ca), certs(a.clientCert, leaf), os.WriteFile(a.clientKey, text, 0o600))
}
