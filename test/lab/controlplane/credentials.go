package controlplane

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"strings"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/utils/ptr"
)

const (
	tokensFile = "tokens.csv"
	adminUser  = "lab-admin"
	nodePrefix = "system:node:"
)

// writeTokens creates a token for the administrator and one for each kubelet.
func (cp *ControlPlane) writeTokens() error {
	cp.tokens = map[string]string{}
	var csv strings.Builder
	add := func(user, group string) {
		cp.tokens[user] = randomToken()
		fmt.Fprintf(&csv, "%s,%s,%s,%s\n", cp.tokens[user], user, user, group)
	}
	add(adminUser, "system:masters")
	for _, node := range cp.cfg.Nodes {
		add(nodePrefix+node, "system:nodes")
	}
	if err := os.WriteFile(cp.file(tokensFile), []byte(csv.String()), 0o600); err != nil {
		return fmt.Errorf("write the tokens: %w", err)
	}
	return cp.writeKubeconfig(cp.Kubeconfig(), adminUser, cp.tokens[adminUser])
}

// newClient creates the administrator's client for this process.
func (cp *ControlPlane) newClient() (err error) {
	cp.rest = &rest.Config{
		Host:            cp.URL(),
		BearerToken:     cp.tokens[adminUser],
		TLSClientConfig: rest.TLSClientConfig{CAFile: cp.file(caFile)},
		Dial:            Dialer(cp.cfg.Namespace),
		QPS:             -1,
		UserAgent:       "ironlb-lab",
	}
	cp.client, err = kubernetes.NewForConfig(cp.rest)
	return err
}

// NodeKubeconfig writes the kubelet's credentials of a node to a file.
func (cp *ControlPlane) NodeKubeconfig(node string) (file string, err error) {
	token, ok := cp.tokens[nodePrefix+node]
	if !ok {
		return "", fmt.Errorf("credentials for node %s: it was not named when the control plane started", node)
	}
	file = cp.file(node + ".kubeconfig")
	return file, cp.writeKubeconfig(file, nodePrefix+node, token)
}

// ServiceAccountKubeconfig requests a token of the ServiceAccount, valid for a day, and writes a kubeconfig with it.
func (cp *ControlPlane) ServiceAccountKubeconfig(ctx context.Context, namespace, name string) (file string, err error) {
	return cp.accountKubeconfig(ctx, namespace, name, "")
}

// ServiceAccountKubeconfigOn is ServiceAccountKubeconfig with a token bound to the Node, like that of a Pod on it.
func (cp *ControlPlane) ServiceAccountKubeconfigOn(ctx context.Context, namespace, name, node string) (file string, err error) {
	return cp.accountKubeconfig(ctx, namespace, name, node)
}

func (cp *ControlPlane) accountKubeconfig(ctx context.Context, namespace, name, node string) (file string, err error) {
	request := &authenticationv1.TokenRequest{
		Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: ptr.To[int64](24 * 3600)},
	}
	file = cp.file(namespace + "-" + name + ".kubeconfig")
	if node != "" {
		request.Spec.BoundObjectRef = &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Node", Name: node}
		file = cp.file(namespace + "-" + name + "-" + node + ".kubeconfig")
	}
	answer, err := cp.client.CoreV1().ServiceAccounts(namespace).CreateToken(ctx, name, request, metav1.CreateOptions{})
	if err != nil {
		return "", fmt.Errorf("token for ServiceAccount %s/%s: %w", namespace, name, err)
	}
	return file, cp.writeKubeconfig(file, name, answer.Status.Token)
}

// writeKubeconfig writes a self-contained kubeconfig.
func (cp *ControlPlane) writeKubeconfig(file, user, token string) error {
	ca, err := os.ReadFile(cp.file(caFile))
	if err != nil {
		return fmt.Errorf("write %s: %w", file, err)
	}
	config := clientcmdapi.NewConfig()
	config.Clusters["lab"] = &clientcmdapi.Cluster{Server: cp.URL(), CertificateAuthorityData: ca}
	config.AuthInfos[user] = &clientcmdapi.AuthInfo{Token: token}
	config.Contexts["lab"] = &clientcmdapi.Context{Cluster: "lab", AuthInfo: user}
	config.CurrentContext = "lab"
	// The file is replaced atomically: a program may be reading the previous one.
	temp, err := os.CreateTemp(cp.cfg.Dir, "kubeconfig-*")
	if err != nil {
		return fmt.Errorf("write %s: %w", file, err)
	}
	if err := errors.Join(temp.Close(), clientcmd.WriteToFile(*config, temp.Name()), os.Rename(temp.Name(), file)); err != nil {
		return fmt.Errorf("write %s: %w", file, err)
	}
	return nil
}

func randomToken() string {
	var b [16]byte
	rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}
