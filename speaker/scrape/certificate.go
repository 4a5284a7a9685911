package scrape

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"log/slog"
	"math/big"
	"net"
	"net/netip"
	"sync"
	"time"
)

// lifetime of a self-signed certificate. It ends with the process.
const lifetime = 10 * 365 * 24 * time.Hour

// SelfSigned returns the configuration of a listener with a new certificate for the node, which clients cannot verify.
func SelfSigned(node string, addr netip.Addr) (*tls.Config, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make the key of a certificate: %w", err)
	}
	now := time.Now()
	template := x509.Certificate{
		Subject: pkix.Name{CommonName: node}, DNSNames: []string{node}, IPAddresses: []net.IP{addr.AsSlice()},
		NotBefore: now.Add(-time.Hour), NotAfter: now.Add(lifetime), // clocks differ
		SerialNumber: big.NewInt(now.UnixNano()),
		KeyUsage:     x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, &template, &template, &key.PublicKey, key)
	if err != nil {
		return nil, fmt.Errorf("make a certificate for node %s: %w", node, err)
	}
	return config(func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
		return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, nil
	}, newBudget(handshakesOfClient, handshakesOfAll)), nil
}

// FromFiles returns the configuration of a listener with the certificate of two files, which may be replaced. While
// there is none, handshakes fail: the program works without its metrics.
func FromFiles(cert, key string, log *slog.Logger) *tls.Config {
	f := &files{cert: cert, key: key, log: log, now: time.Now}
	_, _ = f.get(nil) // logs the error
	return config(f.get, newBudget(handshakesOfClient, handshakesOfAll))
}

// config offers HTTP/1.1 alone: scrapers need no streams, and each connection has one request at a time. Clients above
// the budget are refused before the handshake needs a key.
func config(get func(*tls.ClientHelloInfo) (*tls.Certificate, error), handshakes *budget) *tls.Config {
	return &tls.Config{GetCertificate: get, MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"},
		GetConfigForClient: func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
			if !handshakes.take(hello.Conn.RemoteAddr().String()) {
				return nil, errBudget
			}
			return nil, nil // the same configuration
		}}
}

// readAgain is the time after which the files are read again.
const readAgain = 10 * time.Second

// files are a certificate and its key.
type files struct {
	cert, key string
	log       *slog.Logger
	now       func() time.Time

	mu   sync.Mutex
	read time.Time
	have *tls.Certificate
	// failed is why there is none; why is the last failure, which is logged.
	failed error
	why    string
}

// get returns the certificate. While the files cannot be read it is the last one that could.
func (f *files) get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := f.now()
	if !f.read.IsZero() && now.Sub(f.read) < readAgain {
		return f.have, f.failed
	}
	f.read = now
	found, err := tls.LoadX509KeyPair(f.cert, f.key)
	if err == nil {
		f.have, f.failed, f.why = &found, nil, ""
		return f.have, nil
	}
	err = fmt.Errorf("read the certificate of the metrics (--tls-cert-file %s, --tls-private-key-file %s): %w", f.cert, f.key, err)
	if text := err.Error(); text != f.why {
		f.why = text
		f.log.Error("certificate of the metrics not read, retrying", "error", err, "previous", f.have != nil)
	}
	if f.have == nil {
		f.failed = err
	}
	return f.have, f.failed
}
