# The authority that signs the certificates of clients. Its key stays with you.
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes \
    -days 3650 -subj '/O=Example/CN=Clients' \
    -addext keyUsage=critical,keyCertSign,cRLSign \
    -keyout clients-ca.key -out clients-ca.pem

# A key for one client, made where it will be used, and a request.
openssl req -new -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes \
    -subj '/O=Example/CN=thermometer' \
    -keyout thermometer.key -out thermometer.csr

# Its certificate: for a client, and for nothing else.
cat > thermometer.ext <<'END'
basicConstraints=critical,CA:FALSE
keyUsage=critical,digitalSignature
extendedKeyUsage=clientAuth
subjectAltName=DNS:thermometer.example
END
openssl x509 -req -in thermometer.csr -days 90 \
    -CA clients-ca.pem -CAkey clients-ca.key -CAcreateserial \
    -extfile thermometer.ext -out thermometer.pem

# Its names, in the form in which a callers file has them.
openssl x509 -in thermometer.pem -noout -subject -nameopt RFC2253
