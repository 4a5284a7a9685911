package controlplane

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

// Files that writeKeys makes in the control plane's folder.
const (
	caFile   = "ca.crt"
	certFile = "apiserver.crt"
	keyFile  = "apiserver.key"

	// Credentials of the API server as a client of kubelets.
	kubeletClientCert = "apiserver-kubelet-client.crt"
	kubeletClientKey  = "apiserver-kubelet-client.key"

	saKeyFile  = "service-account.key"
	saPubFile  = "service-account.pub"
	validHours = 48
)

// writeKeys creates a certificate authority, the API server's certificate for the given addresses, and the key that
// signs ServiceAccount tokens.
func writeKeys(dir string, addresses []net.IP) error {
	caKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return fmt.Errorf("make the authority's key: %w", err)
	}
	ca := template(1, "ironlb-lab")
	ca.IsCA, ca.BasicConstraintsValid = true, true
	ca.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature
	caDER, err := x509.CreateCertificate(rand.Reader, ca, ca, caKey.Public(), caKey)
	if err != nil {
		return fmt.Errorf("make the authority's certificate: %w", err)
	}

	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return fmt.Errorf("make the API server's key: %w", err)
	}
	serving := template(2, "kube-apiserver")
	serving.KeyUsage = x509.KeyUsageDigitalSignature
	serving.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	serving.IPAddresses = addresses
	serving.DNSNames = []string{"localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local"}
	der, err := x509.CreateCertificate(rand.Reader, serving, ca, key.Public(), caKey)
	if err != nil {
		return fmt.Errorf("make the API server's certificate: %w", err)
	}
	clientKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return fmt.Errorf("make the key for kubelets: %w", err)
	}
	clientCert := template(3, "kube-apiserver-kubelet-client")
	clientCert.Subject.Organization = []string{"system:masters"}
	clientCert.KeyUsage = x509.KeyUsageDigitalSignature
	clientCert.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	clientDER, err := x509.CreateCertificate(rand.Reader, clientCert, ca, clientKey.Public(), caKey)
	if err != nil {
		return fmt.Errorf("make the certificate for kubelets: %w", err)
	}
	saKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return fmt.Errorf("make the key for ServiceAccounts: %w", err)
	}
	saPub, err := x509.MarshalPKIXPublicKey(saKey.Public())
	if err != nil {
		return fmt.Errorf("encode the key for ServiceAccounts: %w", err)
	}

	for _, write := range []func() error{
		func() error { return writePEM(dir, caFile, "CERTIFICATE", caDER) },
		func() error { return writePEM(dir, certFile, "CERTIFICATE", der) },
		func() error { return writeKey(dir, keyFile, key) },
		func() error { return writePEM(dir, kubeletClientCert, "CERTIFICATE", clientDER) },
		func() error { return writeKey(dir, kubeletClientKey, clientKey) },
		func() error { return writeKey(dir, saKeyFile, saKey) },
		func() error { return writePEM(dir, saPubFile, "PUBLIC KEY", saPub) },
	} {
		if err := write(); err != nil {
			return err
		}
	}
	return nil
}

func template(serial int64, name string) *x509.Certificate {
	now := time.Now()
	return &x509.Certificate{
		SerialNumber: big.NewInt(serial),
		Subject:      pkix.Name{CommonName: name},
		NotBefore:    now.Add(-time.Hour), // a guest's clock may lag
		NotAfter:     now.Add(validHours * time.Hour),
	}
}

func writeKey(dir, file string, key *ecdsa.PrivateKey) error {
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return fmt.Errorf("encode %s: %w", file, err)
	}
	return writePEM(dir, file, "EC PRIVATE KEY", der)
}

func writePEM(dir, file, kind string, der []byte) error {
	data := pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
	return os.WriteFile(filepath.Join(dir, file), data, 0o600)
}
