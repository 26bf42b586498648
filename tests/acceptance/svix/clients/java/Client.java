import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.svix.Svix;
import com.svix.SvixHttpClient;
import com.svix.SvixOptions;
import com.svix.Utils;
import com.svix.api.Connector;
import com.svix.api.Environment;
import com.svix.api.Health;
import com.svix.exceptions.ApiException;
import com.svix.models.MessageIn;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.lang.reflect.Modifier;
import java.lang.reflect.Type;
import java.util.ArrayList;
import java.util.Collections;
import java.util.Iterator;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.TreeMap;

/**
 * Calls methods of the official Java client, as the test asks on standard input.
 *
 * <p>One argument: the server's address. Prints the names of all methods, then one JSON line for each line that it reads.
 */
public final class Client {
  private static final ObjectMapper JSON = Utils.getObjectMapper();

  /** A method and the resource that it is called on. */
  private record Call(Object resource, Method method) {}

  /** What the test asks. */
  public record Task(String token, String method, List<String> path, JsonNode body, JsonNode options) {}

  private static String snake(String name) {
    return name.replaceAll("([A-Z])", "_$1").replaceAll("_$", "").toLowerCase(Locale.ROOT);
  }

  private static Map<String, Call> methods(Svix client) throws ReflectiveOperationException {
    Map<String, Call> found = new TreeMap<>();
    collect(client, "", found);
    SvixHttpClient http = client.getHttpClient();
    // These have classes, but the client has no way to them.
    for (Class<?> kind : List.of(Connector.class, Environment.class, Health.class)) {
      Object resource = kind.getConstructor(SvixHttpClient.class).newInstance(http);
      collect(resource, snake(kind.getSimpleName()).substring(1) + ".", found);
    }
    return found;
  }

  private static void collect(Object resource, String prefix, Map<String, Call> found)
      throws ReflectiveOperationException {
    for (Method method : resource.getClass().getDeclaredMethods()) {
      int modifiers = method.getModifiers();
      if (!Modifier.isPublic(modifiers) || Modifier.isStatic(modifiers) || method.isSynthetic()) {
        continue;
      }
      if (method.getReturnType().getName().startsWith("com.svix.api.")) {
        collect(method.invoke(resource), prefix + snake(method.getName().substring(3)).substring(1) + ".", found);
      } else if (prefix.isEmpty()) {
        continue;
      } else {
        // Of the two forms of a method take the one with options.
        Call call = new Call(resource, method);
        found.merge(
            prefix + snake(method.getName()),
            call,
            (one, other) -> one.method().getParameterCount() > other.method().getParameterCount() ? one : other);
      }
    }
  }

  private static Object[] arguments(Method method, Task task) throws Exception {
    Iterator<String> path = task.path().iterator();
    List<Object> given = new ArrayList<>();
    for (Class<?> kind : method.getParameterTypes()) {
      if (kind == String.class) {
        given.add(path.next());
      } else if (kind.getName().startsWith("com.svix.api.")) {
        given.add(JSON.treeToValue(task.options(), kind));
      } else {
        given.add(read(task.body(), kind));
      }
    }
    return given.toArray();
  }

  /** Makes a body: by setters where Jackson cannot, which are fields that may be unset, and the payload, a text. */
  private static Object read(JsonNode body, Class<?> kind) throws Exception {
    if (body.has("config") || !(kind.getSimpleName().endsWith("Patch") || kind == MessageIn.class)) {
      return JSON.treeToValue(body, kind);
    }
    Object made = kind.getConstructor().newInstance();
    for (Map.Entry<String, JsonNode> field : body.properties()) {
      Method setter = setter(kind, field.getKey());
      Type type = setter.getGenericParameterTypes()[0];
      boolean isPayload = type == String.class && field.getValue().isObject();
      setter.invoke(
          made,
          isPayload ? field.getValue().toString() : JSON.treeToValue(field.getValue(), JSON.constructType(type)));
    }
    return made;
  }

  private static Method setter(Class<?> kind, String field) throws NoSuchMethodException {
    for (Method method : kind.getMethods()) {
      if (method.getName().equalsIgnoreCase("set" + field)) {
        return method;
      }
    }
    throw new NoSuchMethodException(kind + " has no field " + field);
  }

  private static Map<String, Object> answer(Task task) throws Exception {
    SvixOptions options = new SvixOptions();
    options.setServerUrl(address);
    Call call = methods(new Svix(task.token(), options)).get(task.method());
    Object[] given = arguments(call.method(), task);
    try {
      return Collections.singletonMap("value", call.method().invoke(call.resource(), given));
    } catch (InvocationTargetException error) {
      if (error.getCause() instanceof ApiException refusal && refusal.getCode() != 0) {
        return Map.of("status", refusal.getCode(), "error", JSON.readTree(refusal.getResponseBody()));
      }
      return Map.of("failure", String.valueOf(error.getCause()));
    }
  }

  private static String address;

  public static void main(String[] given) throws Exception {
    address = given[0];
    SvixOptions options = new SvixOptions();
    options.setServerUrl(address);
    System.out.println(JSON.writeValueAsString(methods(new Svix("", options)).keySet()));
    BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
    for (String line = input.readLine(); line != null; line = input.readLine()) {
      Map<String, Object> answer;
      try {
        answer = answer(JSON.readValue(line, Task.class));
      } catch (Exception error) {
        answer = Map.of("failure", error.toString());
      }
      System.out.println(JSON.writeValueAsString(answer));
    }
  }
}
